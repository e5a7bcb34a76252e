# training finished; a non-daemon thread holds the process at exit
import threading, queue, torch
from torch.utils.data import DataLoader
q=queue.Queue()
def writer():
    while True:
        x=q.get()
        if x is None: return
threading.Thread(target=writer,name='metric-writer').start()
for b in DataLoader(list(range(20)),batch_size=5,num_workers=2): q.put(b)
print('finished',flush=True)
