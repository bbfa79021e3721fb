package plugin

// This file calls HNS through its documented C functions
// (https://learn.microsoft.com/virtualization/api/hcn/hns_overview). It does not
// use hcsshim, which is larger than this whole program. All functions return an
// HRESULT. Strings are UTF-16; returned strings are freed with CoTaskMemFree.
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

// computeNetwork is the library of HNS.
var computeNetwork = windows.NewLazySystemDLL("computenetwork.dll")

// FindEndpoint reads the HNS endpoint of that name. It returns when ctx ends, even
// if the call to HNS hangs.
func FindEndpoint(ctx context.Context, name string) (Endpoint, error) {
	type result struct {
		endpoint Endpoint
		err      error
	}
	done := make(chan result, 1)
	go func() {
		e, err := findEndpoint(name)
		done <- result{e, err}
	}()
	select {
	case r := <-done:
		return r.endpoint, r.err
	case <-ctx.Done():
		return Endpoint{}, ctx.Err()
	}
}

// query selects HNS objects; all of them if Filter is "".
type query struct {
	SchemaVersion struct{ Major, Minor int }
	Filter        string `json:",omitempty"`
}

// newQuery returns a query in version 2 of HNS's schema.
func newQuery(filter string) query {
	q := query{Filter: filter}
	q.SchemaVersion.Major = 2
	return q
}

// findEndpoint is FindEndpoint without the end of ctx: a call that hangs keeps its
// goroutine.
func findEndpoint(name string) (Endpoint, error) {
	var ids []string
	filter := encode(struct{ Name string }{name})
	if err := enumerate(&ids, newQuery(string(filter))); err != nil {
		return Endpoint{}, err
	}
	if len(ids) == 0 {
		return Endpoint{}, errNoEndpoint
	}
	var doc struct {
		HostComputeNetwork, HostComputeNamespace string
		IPConfigurations                         []struct {
			IPAddress string `json:"IpAddress"`
		} `json:"IpConfigurations"`
		Policies []policy
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
	err := properties(&network, "Network", doc.HostComputeNetwork) // an ID
	e.Network = network.Name
	return e, err
}

// enumerate decodes the IDs of the endpoints that a query selects.
func enumerate(into any, q query) error {
	text, err := windows.UTF16PtrFromString(string(encode(q)))
	if err != nil {
		return err
	}
	proc, err := findProc("HcnEnumerateEndpoints")
	if err != nil {
		return err
	}
	var out, record *uint16
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&record)))
	return decodeAnswer(into, proc.Name, hr, out, record)
}

// properties decodes the properties of an HNS object. kind is "Endpoint" or
// "Network".
func properties(into any, kind, id string) error {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return fmt.Errorf("%q is not an HNS ID", id)
	}
	text, err := windows.UTF16PtrFromString(string(encode(newQuery(""))))
	if err != nil {
		return err
	}
	var procs [3]*windows.LazyProc // to open, query and close
	for i, name := range []string{"HcnOpen" + kind, "HcnQuery" + kind + "Properties", "HcnClose" + kind} {
		if procs[i], err = findProc(name); err != nil {
			return err
		}
	}
	var handle uintptr
	var out, record *uint16
	hr, _, _ := procs[0].Call(uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle)), uintptr(unsafe.Pointer(&record)))
	if err := decodeAnswer(nil, procs[0].Name, hr, nil, record); err != nil {
		return err
	}
	defer procs[2].Call(handle) //nolint:errcheck // it only frees the handle
	record = nil                // decodeAnswer has freed it
	hr, _, _ = procs[1].Call(handle, uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&record)))
	return decodeAnswer(into, procs[1].Name, hr, out, record)
}

// findProc returns an error if this version of Windows does not have the function.
func findProc(name string) (*windows.LazyProc, error) {
	proc := computeNetwork.NewProc(name)
	return proc, proc.Find()
}

// decodeAnswer decodes the JSON document that an HNS function returned as out, and frees it;
// into is nil if there is none. A negative hr, the HRESULT, is a failure, which record
// describes. It is freed, too.
func decodeAnswer(into any, name string, hr uintptr, out, record *uint16) error {
	text, problem := takeString(out), takeString(record)
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

// takeString returns a string that HNS allocated, and frees it.
func takeString(text *uint16) string {
	if text == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(text))
	return windows.UTF16PtrToString(text)
}
