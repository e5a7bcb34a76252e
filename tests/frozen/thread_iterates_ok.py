# healthy: loader in a thread, main joins it; slow samples
import threading, time
from torch.utils.data import DataLoader
class D:
    def __len__(s): return 100000
    def __getitem__(s,i): time.sleep(.1); return i
def train():
    for b in DataLoader(D(),batch_size=4,num_workers=2): pass
t=threading.Thread(target=train,name='trainer'); t.start(); t.join()
