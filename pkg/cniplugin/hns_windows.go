package cniplugin

// HNS is called by its documented entry points (https://learn.microsoft.com/virtualization/api/hcn/hns_overview): the
// library for it is larger than this whole program, which is started for every pod. All return an HRESULT; strings are
// UTF-16, those that come back are freed with CoTaskMemFree:
//
//	HcnEnumerateEndpoints(query, *IDs, *record)
//	HcnOpenEndpoint(*guid, *handle, *record), HcnOpenNetwork likewise
//	HcnQueryEndpointProperties(handle, query, *properties, *record), HcnQueryNetworkProperties likewise
//	HcnCloseEndpoint(handle), HcnCloseNetwork(handle)

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

var computeNetwork = windows.NewLazySystemDLL("computenetwork.dll")

// FindEndpoint reads the endpoint with a name. A call of HNS that hangs is left behind when ctx ends.
func FindEndpoint(ctx context.Context, name string) (Endpoint, error) {
	type answer struct {
		endpoint Endpoint
		err      error
	}
	done := make(chan answer, 1)
	go func() {
		e, err := findEndpoint(name)
		done <- answer{e, err}
	}()
	select {
	case a := <-done:
		return a.endpoint, a.err
	case <-ctx.Done():
		return Endpoint{}, ctx.Err()
	}
}

// query asks for all, or for what the filter says.
type query struct {
	SchemaVersion struct{ Major, Minor int }
	Filter        string `json:",omitempty"`
}

func newQuery(filter string) query {
	q := query{Filter: filter}
	q.SchemaVersion.Major = 2
	return q
}

func findEndpoint(name string) (Endpoint, error) {
	var ids []string
	filter := encode(struct{ Name string }{name})
	if err := enumerate(&ids, newQuery(string(filter))); err != nil {
		return Endpoint{}, err
	}
	if len(ids) == 0 {
		return Endpoint{}, ErrNoEndpoint
	}
	var doc struct {
		HostComputeNetwork, HostComputeNamespace string
		IPConfigurations                         []struct {
			IPAddress string `json:"IpAddress"`
		} `json:"IpConfigurations"`
		Policies []Policy
	}
	if err := properties(&doc, "Endpoint", ids[0]); err != nil {
		return Endpoint{}, err
	}
	e := Endpoint{Namespace: doc.HostComputeNamespace, Policies: doc.Policies}
	for _, c := range doc.IPConfigurations {
		if a, err := netip.ParseAddr(c.IPAddress); err == nil {
			e.IPs = append(e.IPs, a)
		}
	}
	var network struct{ Name string }
	err := properties(&network, "Network", doc.HostComputeNetwork)
	e.Network = network.Name
	return e, err
}

func enumerate(into any, q query) error {
	text, err := windows.UTF16PtrFromString(string(encode(q)))
	if err != nil {
		return err
	}
	proc, err := find("HcnEnumerateEndpoints")
	if err != nil {
		return err
	}
	var out, record *uint16
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&record)))
	return answer(into, proc.Name, hr, out, record)
}

// properties reads the document of an object of HNS, by its kind and its ID.
func properties(into any, kind, id string) error {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return fmt.Errorf("%q is not an ID of HNS", id)
	}
	text, err := windows.UTF16PtrFromString(string(encode(newQuery(""))))
	if err != nil {
		return err
	}
	var procs [3]*windows.LazyProc
	for i, name := range []string{"HcnOpen" + kind, "HcnQuery" + kind + "Properties", "HcnClose" + kind} {
		if procs[i], err = find(name); err != nil {
			return err
		}
	}
	var handle uintptr
	var out, record *uint16
	hr, _, _ := procs[0].Call(uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle)), uintptr(unsafe.Pointer(&record)))
	if err := answer(nil, procs[0].Name, hr, nil, record); err != nil {
		return err
	}
	defer procs[2].Call(handle) //nolint:errcheck // it only frees
	record = nil
	hr, _, _ = procs[1].Call(handle, uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&record)))
	return answer(into, procs[1].Name, hr, out, record)
}

// find is an error where this Windows has no such entry point.
func find(name string) (*windows.LazyProc, error) {
	proc := computeNetwork.NewProc(name)
	return proc, proc.Find()
}

// answer reads what a call has returned, and frees it.
func answer(into any, name string, hr uintptr, out, record *uint16) error {
	text, problem := take(out), take(record)
	if int32(hr) < 0 { //nolint:gosec // an HRESULT has 32 bits
		return fmt.Errorf("%s: 0x%08x %.300s", name, uint32(hr), problem)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func take(text *uint16) string {
	if text == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(text))
	return windows.UTF16PtrToString(text)
}
