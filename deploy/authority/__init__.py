"""A private certificate authority, and enrolment by one-time token.

pki                a private authority and role certificates
certificate_forms  what its certificates look like
enrolment/         Certificates by one-time token
"""
