"""Foreign statements of the HIP interface: fetch.py; clients of it: client.py, check_headers.c."""
