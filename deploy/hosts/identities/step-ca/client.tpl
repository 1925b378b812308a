{
  "subject": {"organization": "precad", "organizationalUnit": "client"},
  "sans": [{"type": "uri", "value": {{ printf "precad://client/%s" .Subject.CommonName | toJson }}}],
  "keyUsage": ["digitalSignature"],
  "extKeyUsage": ["clientAuth"]
}
