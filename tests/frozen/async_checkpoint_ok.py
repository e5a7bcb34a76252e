# healthy: async checkpoint thread takes 15 s of CPU/IO; main waits for future.result()
import time, os, tempfile
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader
ex=ThreadPoolExecutor(1,thread_name_prefix='saver')
def save(i):
    with tempfile.TemporaryFile() as f:
        t=time.time()
        while time.time()-t<15: f.seek(0); f.write(os.urandom(1<<20)); f.flush(); os.fsync(f.fileno()); time.sleep(.02)
for i,b in enumerate(DataLoader(list(range(400)),batch_size=4,num_workers=2)):
    f=ex.submit(save,i); f.result()
