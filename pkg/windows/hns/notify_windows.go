package hns

import (
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"flannel/pkg/reconcile"
)

// HNS sends notifications to a callback:
//
//	HcnRegisterServiceCallback(callback, context, *handle)
//	void callback(DWORD type, void *context, HRESULT status, PCWSTR data)   on a thread of HNS's library
//	HcnUnregisterServiceCallback(handle)
//
// Types (https://learn.microsoft.com/virtualization/api/hcn/reference/hcn_notifications):
//
//	1, 2         before and after a network is created
//	3, 4         before and after a network is deleted
//	5, 6         a namespace is created, is deleted
//	serviceGone  the HNS service has stopped
//
// There are none for policies. A service that starts again has forgotten all registrations, so Notify registers again.

// serviceGone is the type of the notification that the HNS service has stopped.
const serviceGone = 0x01000000

// reregisterInterval is the pause between attempts to register again after HNS has stopped: a choice.
const reregisterInterval = 2 * time.Second

// listeners maps the context of each registration, a number, to its Go function. All registrations share one callback,
// because Go cannot free a callback.
type listeners struct {
	mu          sync.Mutex
	callback    uintptr // 0 before the first add
	lastContext uintptr
	byContext   map[uintptr]func(gone bool) // gone: the type was serviceGone
}

// add adds a function, which dispatch calls on a thread of HNS's library until remove. The function must not block.
func (l *listeners) add(f func(gone bool)) (context uintptr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byContext == nil {
		l.byContext = map[uintptr]func(bool){}
		l.callback = windows.NewCallback(func(kind uint32, context uintptr, _ uintptr, _ uintptr) uintptr { // _: status, data
			l.dispatch(context, kind)
			return 0 // the callback is a void function, but NewCallback requires a result
		})
	}
	l.lastContext++
	l.byContext[l.lastContext] = f
	return l.lastContext
}

// remove removes a function. A call of it that has begun may still run.
func (l *listeners) remove(context uintptr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byContext, context)
}

// dispatch calls the function of a registration, unless it has been removed.
func (l *listeners) dispatch(context uintptr, kind uint32) {
	l.mu.Lock()
	f := l.byContext[context]
	l.mu.Unlock()
	if f != nil {
		f(kind == serviceGone)
	}
}

// Notify implements Calls. After an error, nothing is registered, and the caller (Client.listen) polls; it tries again
// unless HNS has no notifications. Otherwise a goroutine keeps the registration until stop is called:
//
//	state          handle    cause                     action
//	registered     not 0     serviceGone               unregister the old handle, register again
//	                         stop                      unregister, end
//	unregistered   0         reregisterInterval ends   register again; if that succeeds, call changed
//	                         stop                      end
func (s *service) Notify(changed func()) (stop func(), err error) {
	gone := make(chan struct{}, 1) // receives a value when the registration is lost, or could not be made again
	context := s.listeners.add(func(isGone bool) {
		changed()
		if isGone {
			reconcile.Notify(gone)
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
		for s.awaitGone(handle, gone, quit) {
			var err error // not Notify's result, which the caller may be reading
			if handle, err = s.register(context); err == nil {
				changed()
				continue
			}
			handle = 0
			reconcile.Notify(gone)
			select {
			case <-quit:
				return
			case <-time.After(reregisterInterval):
			}
		}
	}()
	return sync.OnceFunc(func() { close(quit) }), nil
}

// awaitGone waits until HNS has stopped (true) or quit is closed (false), and then unregisters the handle, if it is not
// 0. The callback itself must not do that, since unregistering waits for callbacks to return.
func (s *service) awaitGone(handle uintptr, gone, quit <-chan struct{}) bool {
	isGone := true
	select {
	case <-quit:
		isGone = false
	case <-gone:
	}
	if proc := s.dll.NewProc("HcnUnregisterServiceCallback"); handle != 0 && proc.Find() == nil {
		go proc.Call(handle) // may take long if the service has stopped; an error would change nothing
	}
	return isGone
}

// register registers the callback with HNS. HNS passes context to it, by which dispatch finds the function.
func (s *service) register(context uintptr) (handle uintptr, err error) {
	const name = "HcnRegisterServiceCallback"
	if err := s.require(name); err != nil {
		return 0, err
	}
	// add has set callback, which then stays the same.
	hr, _, _ := s.dll.NewProc(name).Call(s.listeners.callback, context, uintptr(unsafe.Pointer(&handle)))
	return handle, hcnError(name, hr, "") // "": this function has no error record
}
