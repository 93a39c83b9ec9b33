import os,subprocess
f=os.memfd_create('ipclab-race')
env={**os.environ,'LD_LIBRARY_PATH':'/tmp/rb/libs_new','IPCLAB_MODEL_MACHINE':'rbprof','IPCLAB_MODEL_RACE':f'/proc/{os.getpid()}/fd/{f}','LD_PRELOAD':'/tmp/rb/libmsg_new.so','K':'1'}
subprocess.run(['perf','record','-o','/tmp/rb/perf.data','-g','/tmp/rb/b2'],env=env,capture_output=True)
