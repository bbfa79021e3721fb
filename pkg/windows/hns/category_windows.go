package hns

// This file uses the COM interface of the Network List Manager (https://learn.microsoft.com/windows/win32/api/netlistmgr),
// by its vtables: a GUID, as GetAdapterId returns it, is not a type that IDispatch has. Each interface begins with the
// seven methods of IDispatch. A call may hang: CategoryClient (category.go) makes it on a goroutine of its own.
//
//	INetworkListManager: GetNetworks, GetNetwork, GetNetworkConnections(enumerator)
//	IEnumNetworkConnections: _NewEnum, Next(count, connections, fetched)
//	INetworkConnection: GetNetwork(network), IsConnectedToInternet, IsConnected, GetConnectivity, GetConnectionId,
//	  GetAdapterId(guid)
//	INetwork: GetName, SetName, GetDescription, SetDescription, GetNetworkId, GetDomainType, GetNetworkConnections,
//	  GetTimeCreatedAndConnected, IsConnectedToInternet, IsConnected, GetConnectivity, GetCategory(category),
//	  SetCategory(category)

import (
	"strings"
	"syscall"
	"unsafe"

	"github.com/go-ole/go-ole"
)

var (
	clsidNetworkListManager = ole.NewGUID("{DCB00C01-570F-4A9B-8D69-199FDBA5723B}")
	iidNetworkListManager   = ole.NewGUID("{DCB00000-570F-4A9B-8D69-199FDBA5723B}")
)

// Positions of methods in their vtables.
const (
	getNetworkConnections = 9
	nextConnection        = 8
	getNetwork            = 7
	getAdapterID          = 12
	getCategory           = 18
	setCategory           = 19
	methods               = 20 // of the longest vtable that is used
)

// comObject is a COM object: a pointer to it is what COM returns. The vtable has at least as many methods as are called.
type comObject struct{ vtable *[methods]uintptr }

// call calls a method. Pointers in args may point to variables of the caller.
//
//go:uintptrescapes
func (o *comObject) call(name string, method int, args ...uintptr) error {
	result, _, _ := syscall.SyscallN(o.vtable[method], append([]uintptr{uintptr(unsafe.Pointer(o))}, args...)...)
	if int32(result) < 0 { // S_FALSE is not an error
		return &Error{Call: name, Code: Code(result)}
	}
	return nil
}

// release gives up the reference to an object; nil: there is none.
func (o *comObject) release() {
	if o != nil {
		(*ole.IUnknown)(unsafe.Pointer(o)).Release()
	}
}

// Category implements Stack.
func (ipHelper) Category(adapterGUID string) (c Category, err error) {
	err = withNetwork(adapterGUID, func(network *comObject) error {
		var value int32
		err := network.call("INetwork.GetCategory", getCategory, uintptr(unsafe.Pointer(&value)))
		c = Category(value)
		return err
	})
	return c, err
}

// SetCategory implements Stack.
func (ipHelper) SetCategory(adapterGUID string, c Category) error {
	return withNetwork(adapterGUID, func(network *comObject) error {
		return network.call("INetwork.SetCategory", setCategory, uintptr(c))
	})
}

// withNetwork calls f with the INetwork to which an adapter is connected, on a thread that withCOM (firewall_windows.go)
// has initialized for COM. Without such a network, the error is ErrNotFound.
func withNetwork(adapterGUID string, f func(network *comObject) error) error {
	return withCOM(func() error {
		unknown, err := ole.CreateInstance(clsidNetworkListManager, iidNetworkListManager)
		if err != nil {
			return comError("CoCreateInstance", err)
		}
		manager := (*comObject)(unsafe.Pointer(unknown))
		defer manager.release()
		var connections *comObject
		err = manager.call("INetworkListManager.GetNetworkConnections", getNetworkConnections, uintptr(unsafe.Pointer(&connections)))
		if err != nil {
			return err
		}
		defer connections.release()
		for {
			var connection *comObject
			var fetched uint32
			err := connections.call("IEnumNetworkConnections.Next", nextConnection, 1, uintptr(unsafe.Pointer(&connection)), uintptr(unsafe.Pointer(&fetched)))
			if err != nil {
				return err
			}
			if fetched == 0 { // the end of the list
				return &Error{Call: "IEnumNetworkConnections.Next", Code: ElementNotFound}
			}
			if found, err := isOf(connection, adapterGUID); !found || err != nil {
				connection.release()
				continue // with an error, it may have ended since it was listed
			}
			defer connection.release()
			return withNetworkOf(connection, f)
		}
	})
}

// isOf reports whether a connection is that of an adapter.
func isOf(connection *comObject, adapterGUID string) (bool, error) {
	var id ole.GUID
	err := connection.call("INetworkConnection.GetAdapterId", getAdapterID, uintptr(unsafe.Pointer(&id)))
	return strings.EqualFold(strings.Trim(id.String(), "{}"), adapterGUID), err
}

// withNetworkOf calls f with the INetwork of a connection.
func withNetworkOf(connection *comObject, f func(network *comObject) error) error {
	var network *comObject
	if err := connection.call("INetworkConnection.GetNetwork", getNetwork, uintptr(unsafe.Pointer(&network))); err != nil {
		return err
	}
	defer network.release()
	return f(network)
}
