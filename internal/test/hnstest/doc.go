// Package hnstest simulates a Windows machine in memory: HNS, which binds a
// virtual switch to the adapter and moves the host's address there, the IP
// stack, and the Windows Firewall. A Machine implements hns.Calls, hns.Stack and
// hns.Firewall, for tests on any operating system. It contains no code of
// Windows.
//
// The package wine below it makes the same machine available to Windows
// programs that run in Wine, and checks it with tests that Microsoft wrote for
// HNS. A Body carries out the machine's changes elsewhere, such as in the
// network namespace of a Windows node in cmd/flannel-lab.
//
// Recorded makes a machine from the support bundle of another one, so that a
// report becomes a test.
//
// Knobs make the machine slow, forgetful or old. A Fault makes single calls
// fail or hang. An Admin changes the machine as an administrator or another
// program would. Every call is in the machine's log.
//
// # What is known of Windows
//
// The following is from its documentation and from reports of users:
//
//   - The first external network on an adapter takes the adapter's addresses.
//     They come back seconds later on "vEthernet (<adapter>)", an adapter with
//     another index and the same MAC. Sometimes DNS servers, gateway, metric
//     or further routes are missing then, or the address is in 169.254.0.0/16.
//     When the last network is deleted, the addresses move back.
//   - A static configuration may become DHCP then, or at each boot. A persistent
//     switch may be dead after a boot (Documentation/windows.md has the reports).
//   - The subnets of a network never change.
//   - ManagementIP and DrMacAddress may become known late.
//   - Error texts are in the language of the machine. (The simulation makes
//     them useless on purpose.)
//   - Registrations for notifications, and networks that are not persistent,
//     end with the HNS service.
//   - The lists of adapters also contain the filter drivers of adapters.
//   - SetIpInterfaceEntry refuses a SitePrefixLength other than 0 for IPv4.
//
// # What is assumed
//
// Nobody has shown the following on a real HNS. The daemon must work either
// way. Where a knob is named, tests try both.
//
//   - Adding a policy that exists is refused with PolicyExists
//     (AcceptDuplicates: the network then has it twice). Two
//     RemoteSubnetRoutes are the same policy if destination and VSID are
//     equal.
//   - A request that contains a refused policy changes nothing
//     (PartialBatches: the policies before it are applied).
//   - HNS returns settings in a form of its own: another order of fields,
//     upper-case MACs. A policy is removed if the request has the same values, in any form.
//   - A VSID below 4096 is refused with E_INVALIDARG, the name of a virtual
//     adapter with AdapterNotFound.
//   - A network without a NetAdapterName uses the first physical adapter.
//   - Deleting a network deletes its endpoints. When a restart of HNS deletes
//     a network, its switch is removed, too.
//   - While HNS is down, calls fail at once with RPC_S_SERVER_UNAVAILABLE.
//   - ProviderAddress is the first IPv4 address of the virtual adapter, even
//     one in 169.254.0.0/16, as soon as HNS has seen one (FirstIP: it then
//     keeps that one when the host gets another).
//   - Setting an address manually removes the one that Windows chose itself
//     (169.254.x.x).
//   - There are notifications about networks, but not about policies, which
//     the documentation does not mention.
//   - An empty value in the filter of a query matches objects whose value is
//     empty. kube-proxy looks for load balancers with an empty ID before it
//     deletes what it finds.
//   - A remote endpoint makes its own address reachable, and nothing else. If a
//     RemoteSubnetRoute has that address, too, packets take the MAC of the policy, and the
//     endpoint's MAC is never on the wire (the source of kube-proxy says so about the
//     endpoints that it creates).
//   - The call DhcpNotifyConfigChange tells the DHCP client that the registry has a static
//     configuration. The static addresses replace the leased ones (StoredOnly: nothing
//     changes). After a boot an adapter has what the registry has (RebootForgets: the virtual
//     adapter has DHCP).
//   - A switch is dead if HNS has it after a boot while the physical adapter below it has the
//     host's addresses (DeadSwitch, ChangedGUID). Deleting its networks leaves the physical
//     adapter as it is.
//   - DNS servers outlast a boot.
//   - Deleting a namespace leaves its endpoints, and their documents, as they are
//     (ForgetNamespace: they are detached; OmitNamespace: no document of an
//     endpoint has its namespace). A new machine has no namespace, not even that
//     of the host.
//   - A ghost is a network that HNS does not list, and whose name it refuses to other networks
//     (Admin.Ghost). A restart of HNS or a boot removes it, and the older API can delete it
//     where that API lists it (GhostNetwork).
//   - Default routes count as made by a program (MIB_IPPROTO_NETMGMT), whoever
//     set them.
package hnstest
