package hns

import (
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Notifications, as they reach the callback:
//
//	HcnRegisterServiceCallback(callback, context, *handle)
//	void callback(DWORD type, void *context, HRESULT status, PCWSTR data)   on a thread of its own
//	HcnUnregisterServiceCallback(handle)
//
// Types are networks before and after creation (1, 2) and deletion (3, 4), namespaces (5, 6), and the end of the
// service (https://learn.microsoft.com/virtualization/api/hcn/reference/hcn_notifications). Policies are not told of.
const serviceGone = 0x01000000

// registerAgain is how often to try to be told again, once HNS has restarted.
const registerAgain = 2 * time.Second

// listeners are those who are told. Go cannot give a callback back, so there is one for all.
type listeners struct {
	mu       sync.Mutex
	callback uintptr
	last     uintptr
	all      map[uintptr]func(gone bool)
}

func (l *listeners) add(f func(gone bool)) (context uintptr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[uintptr]func(bool){}
		l.callback = windows.NewCallback(func(kind uint32, context uintptr, _ uintptr, _ uintptr) uintptr {
			l.tell(context, kind)
			return 0
		})
	}
	l.last++
	l.all[l.last] = f
	return l.last
}

func (l *listeners) remove(context uintptr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, context)
}

func (l *listeners) tell(context uintptr, kind uint32) {
	l.mu.Lock()
	f := l.all[context]
	l.mu.Unlock()
	if f != nil {
		f(kind == serviceGone)
	}
}

// Notify goes on when HNS restarts, which forgets who wants to be told.
func (s *service) Notify(changed func()) (stop func(), err error) {
	gone := make(chan struct{}, 1)
	context := s.listeners.add(func(disconnected bool) {
		changed()
		if disconnected {
			select {
			case gone <- struct{}{}:
			default:
			}
		}
	})
	handle, err := s.register(context)
	if err != nil {
		s.listeners.remove(context)
		return nil, err
	}
	quit := make(chan struct{})
	go func() {
		defer s.listeners.remove(context)
		for s.stays(handle, gone, quit) {
			var err error // the other may just be on its way to the caller
			if handle, err = s.register(context); err == nil {
				changed()
				continue
			}
			handle = 0
			select {
			case gone <- struct{}{}:
			default:
			}
			select {
			case <-quit:
				return
			case <-time.After(registerAgain):
			}
		}
	}()
	return sync.OnceFunc(func() { close(quit) }), nil
}

// stays waits until HNS has gone or the listener quits, false for the latter, and gives the handle back: not within the
// callback, which would wait for itself.
func (s *service) stays(handle uintptr, gone, quit <-chan struct{}) bool {
	stay := true
	select {
	case <-quit:
		stay = false
	case <-gone:
	}
	if proc := s.dll.NewProc("HcnUnregisterServiceCallback"); handle != 0 && proc.Find() == nil {
		go proc.Call(handle) // to a service that is gone it may take long
	}
	return stay
}

func (s *service) register(context uintptr) (handle uintptr, err error) {
	const name = "HcnRegisterServiceCallback"
	if err := s.offers(name); err != nil {
		return 0, err
	}
	hr, _, _ := s.dll.NewProc(name).Call(s.listeners.callback, context, uintptr(unsafe.Pointer(&handle)))
	return handle, failure(name, hr, "")
}
