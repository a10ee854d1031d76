"""Google's own client gets a token by a file of workload identity federation."""
import json, sys
import google.auth.identity_pool as identity_pool
from google.auth.transport._http_client import Request

info = json.load(open(sys.argv[1]))
scope = "https://www.googleapis.com/auth/compute"
identity_pool.Credentials.from_info(info, scopes=[scope]).refresh(Request())
