import ctypes, http.server, multiprocessing as mp, os, time, urllib.request
import torch
from torch.utils.data import DataLoader, Dataset

_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=lambda: _libc.prctl(1, 9))  # children die with their parent

class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(2)
        body = self.path[1:].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a):
        pass

def serve(q):
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    q.put(s.server_port)
    s.serve_forever()

class ApiDataset(Dataset):
    def __init__(self, port):
        self.port = port
    def __len__(self):
        return 10000
    def __getitem__(self, i):
        return torch.tensor(int(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{i}", timeout=30).read()))

if __name__ == "__main__":
    q = mp.Queue()
    mp.Process(target=serve, args=(q,), daemon=True, name="slow-api").start()
    for b in DataLoader(ApiDataset(q.get()), batch_size=1, num_workers=2):
        print(b, flush=True)
