{
  "subject": {"organization": "precad", "organizationalUnit": {{ .Subject.CommonName | toJson }}},
{{- if or (eq .Subject.CommonName "aggregator-a") (eq .Subject.CommonName "aggregator-b") }}
  "sans": [
    {"type": "uri", "value": {{ printf "precad://%s/%s" .Subject.CommonName .Subject.CommonName | toJson }}},
    {"type": "dns", "value": {{ printf "%s.precad" .Subject.CommonName | toJson }}}
  ],
{{- else }}
{{ fail "expected a token for aggregator-a or aggregator-b" }}
{{- end }}
  "keyUsage": ["digitalSignature"],
  "extKeyUsage": ["serverAuth", "clientAuth"]
}
