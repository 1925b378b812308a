"""`precad account` and `precad certify`: what a training proves.

Modules:

    accounting         `precad account`
    accounting_shown   its report, printed
    training_plan      the training that it is asked about
    conditions         what figures of PRECAD rest on with a function of the sum
    bins               balls in bins inside a client, beside Poisson sampling
    task_account       the account of a task of another algorithm
    tested_account     `precad account --ptr`: propose-test-release at one server
    certifying         certificates from confidences, or from run folders
    certificates       `precad certify`
    certificates_shown its report, printed
    planning           `precad certify --plan`
    holder             `precad holder`: a data holder's own ledger, shown and charged
    run_evidence       what run folders say for a certificate
    plots              what `--plot` draws
"""
