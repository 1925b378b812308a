"""Operations that Numba has no name for, in LLVM's own types: words of 128 bits, and four words as one vector."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from precad.mpc.kernels.lanes import LANES


@intrinsic
def high_product(_context: Any, x: Any, y: Any) -> Any:
    """Return bits 64..127 of the product of two words."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(value, wide) for value in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def add_four(_context: Any, buckets: Any, first: Any, y0: Any, y1: Any, y2: Any, y3: Any) -> Any:
    """Add (y0, y1, y2, y3) to buckets[first : first + 4], as one vector."""
    signature = types.void(buckets, first, y0, y1, y2, y3)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), LANES)
        array, first, *lanes = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        where = builder.bitcast(builder.gep(data, [first]), vector.as_pointer())
        addend = ir.Constant(vector, ir.Undefined)
        for lane, value in enumerate(lanes):
            addend = builder.insert_element(addend, value, ir.Constant(ir.IntType(32), lane))
        builder.store(builder.add(builder.load(where, align=8), addend), where, align=8)
        return context.get_dummy_value()

    return signature, generate
