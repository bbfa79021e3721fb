// Package hnstest is a simulated Windows machine in memory: HNS, which binds a virtual switch to the adapter and moves the
// host's address, and the IP stack. No line of Windows is in it. It is an hns.Calls and an hns.Stack for tests on any
// system; package wine below it lets programs in Wine take it for their Windows, and checks it against what Microsoft
// wrote; and a Body follows what it does, such as the network namespace that plays a Windows node in cmd/flannel-lab.
//
// Knobs make it late, forgetful or old; a Fault makes single calls fail or hang; a Hand is somebody else at the machine.
// Every call is in the log as it came.
//
// # What is known of Windows
//
// From its documentation and its users' reports: the first external network on an adapter takes its addresses, which come
// back seconds later on "vEthernet (<adapter>)" with another index and the same MAC; now and then without DNS servers,
// gateway, metric or further routes, or as 169.254.x.x; the last network's end moves them back. A network's subnets never
// change. ManagementIP and DrMacAddress may come late. Texts of errors are in the machine's language (here they are
// useless on purpose). Registrations for notifications, and networks that are not persistent, end with the service.
// Adapters' filter drivers are in the lists of adapters, too. SetIpInterfaceEntry refuses a SitePrefixLength for IPv4.
//
// # What is assumed
//
// Nobody has shown these on a real HNS; the daemon has to be right either way, and where a knob says so its tests try
// both.
//
//   - A policy that is there already is refused with PolicyExists (AcceptDuplicates: it is there twice then). Two
//     RemoteSubnetRoutes are the same policy when destination and VSID are.
//   - A request with a refused policy changes nothing (PartialBatches: what came before that stays).
//   - HNS returns settings in its own writing: other order of fields, upper-case MACs. Removal compares values.
//   - A VSID below 4096 is refused with E_INVALIDARG, a virtual adapter's name with AdapterNotFound.
//   - A network without a NetAdapterName takes the first physical adapter.
//   - Deleting a network deletes its endpoints. A restart of HNS frees the switch of a network that is lost with it.
//   - HNS that is not up answers with RPC_S_SERVER_UNAVAILABLE, at once.
//   - ProviderAddress is the virtual adapter's first IPv4 address, 169.254.x.x too, as soon as HNS has seen one (FirstIP:
//     and stays that when the host has another).
//   - An address set by hand ends the one that Windows chose (169.254.x.x).
//   - Notifications tell of networks, not of policies: nothing in the documentation speaks of such.
//   - An empty value in a query's filter asks for what has an empty one: kube-proxy looks for load balancers by an empty
//     ID before it deletes what it finds.
//   - A remote endpoint is reached by its own address alone. One within a remote subnet is reached as all of that subnet:
//     its MAC is not on the wire, as kube-proxy's source says of those that it makes.
//   - Default routes count as made by a program (MIB_IPPROTO_NETMGMT), whoever set them.
package hnstest
