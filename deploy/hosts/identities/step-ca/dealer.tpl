{
  "subject": {"organization": "precad", "organizationalUnit": "dealer"},
{{- if eq .Subject.CommonName "dealer" }}
  "sans": [{"type": "uri", "value": "precad://dealer/dealer"}, {"type": "dns", "value": "dealer.precad"}],
{{- else }}
{{ fail "expected a token for dealer" }}
{{- end }}
  "keyUsage": ["digitalSignature"],
  "extKeyUsage": ["serverAuth"]
}
