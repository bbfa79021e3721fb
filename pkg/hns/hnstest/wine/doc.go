// Package wine lets programs that run in Wine take a simulated machine (package hnstest) for the Windows that they run on:
// our own computenetwork.dll, vmcompute.dll and iphlpapi.dll (folder dll, built by `make wine`) send each call to a Server,
// so that the calls of the real flanneld.exe come to the machine as they would come to Windows.
//
// The integration tests of hcsshim, which Microsoft wrote for the real HNS, run against it: all of package hcn's but those
// that TestHcsshim names, each with its reason. They settle the shape of documents, the codes for what is missing, that
// networks and endpoints can be found by name and ID, that an ID in a document is kept, that a policy is removed by
// settings that say the same in other letters, that a taken port is refused. Structures of the IP Helper API are checked
// from the other side, by winipcfg in the tests of package hns.
package wine
