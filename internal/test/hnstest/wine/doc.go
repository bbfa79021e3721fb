// Package wine connects Windows programs that run in Wine to a simulated
// machine (package hnstest). Our own computenetwork.dll, vmcompute.dll,
// iphlpapi.dll, hnetcfg.dll and netprofm.dll (folder dll, built by `make wine`) send each call
// to a Server, so the real flanneld.exe makes the same calls as on Windows.
//
// The integration tests of package hcn of hcsshim, which Microsoft wrote for
// the real HNS, run against it, except for those that TestHcsshim lists with
// reasons. They check the structure of documents, the codes for missing
// objects, that networks and endpoints are found by name and ID, that an ID in
// a document is kept, that a policy is removed by equal settings in other
// letters, and that a used port is refused. The tests of package hns check the
// structures of the IP Helper API with winipcfg.
package wine
