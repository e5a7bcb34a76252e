# stuck: main waits on a ThreadPoolExecutor future (async checkpoint), whose thread waits for a lock main holds (with)
import threading
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader
lock=threading.Lock(); ex=ThreadPoolExecutor(1,thread_name_prefix='saver')
def save(i):
    with lock: return i
for i,b in enumerate(DataLoader(list(range(400)),batch_size=4,num_workers=2)):
    with lock:
        f=ex.submit(save,i)
        if i==5: f.result()
