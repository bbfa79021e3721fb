package hnstest

import (
	"strings"
	"time"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Knobs configure how the machine behaves. With the zero value everything works
// and takes no time.
type Knobs struct {
	Version hns.Version // of HNS; zero: 13.3 (Windows Server 2022)
	Down    bool        // HNS is not running: each call of it fails at once
	Silent  bool        // HNS has no notifications: registering for them fails, and earlier registrations get none

	// Outage is how long the addresses of an adapter are missing after its
	// first network was created or its last one deleted. If this or one of the
	// next durations is negative, the event does not happen until Turn sets
	// another value.
	Outage time.Duration
	// ManagementIP is how long after the outage HNS knows the address of the
	// host.
	ManagementIP time.Duration
	// ManagementIPAfterEndpoint: HNS learns the host's address on an L2Bridge only when an
	// endpoint of it is attached to the host (flannel#1066).
	ManagementIPAfterEndpoint bool
	// FirstIP makes HNS report the first address that it saw, even if the host
	// does not have it any more.
	FirstIP bool
	// DRMAC is how long after its creation HNS reports the MAC of an overlay.
	DRMAC time.Duration

	// What is lost when the configuration moves to another adapter.
	APIPA       bool // IPv4 addresses: the adapter gets 169.254.149.216/16 instead, as if no DHCP server answered
	LoseDNS     bool
	LoseGateway bool // default routes
	LoseMetric  bool // metrics of default routes: they become 0
	LoseRoutes  bool // routes that programs made, except for default routes; e.g. to 169.254.169.254
	LoseMTU     bool // the MTU of the virtual adapter is 1500 (microsoft/SDN#84)
	// LosesCategory: the network of the virtual adapter is public (moby#39238).
	LosesCategory    bool
	CategoryByPolicy bool // a group policy forbids to set the category of a network
	CategoryReverts  bool // a group policy makes each network public again at once (K2s#682)
	// BecomesDHCP turns a static IPv4 configuration into DHCP, in the registry,
	// too: the adapter has an address with the same prefix and the last byte
	// 150 (ovn-kubernetes#2530, microsoft/SDN#498).
	BecomesDHCP bool
	// VirtualDown: the virtual adapter of a new switch never comes up, and the
	// configuration is nowhere.
	VirtualDown bool
	KillTCP     bool // TCP connections from the addresses end at once instead of by timeout

	// What Reboot does.
	RebootForgets bool // a virtual adapter is configured by DHCP after each boot (calico#4631)
	DeadSwitch    bool // switches stay bound, but the physical adapters have their addresses (calico#11840)
	ChangedGUID   bool // physical adapters have another GUID, and their switches are dead
	DeadRefuses   bool // no network can be created on a dead switch: 0x80070057 (microsoft/SDN#177)

	// RestartLosesEndpoints: a restart of HNS deletes the endpoints of all networks, and no
	// network, whether it is persistent or not (calico#5164).
	RestartLosesEndpoints bool

	// StoredOnly: SetPersistent changes the registry and nothing else, because
	// the DHCP client ignores the notification.
	StoredOnly bool

	// A further network on an adapter with a switch.
	BoundName       hns.Code // the adapter's name is refused so; 0: it works (sig-windows-tools#103, microsoft/SDN#269)
	EmptyRefused    bool     // the name is required (azure-container-networking#4439)
	EmptyElsewhere  bool     // without a name, HNS takes an adapter without a switch
	ProviderSelects bool     // policy ProviderAddress selects the adapter (hcsshim#2801); else it is refused

	// What the physical adapters are. VlanLost is the VLAN whose tag their driver adds; a switch on
	// them sends without the tag, so that its host reaches nobody (calico#4678).
	VlanLost    int
	AdapterKind hns.Kind
	// KindRefused: no network can be created on an adapter of this kind, 0x803b0006. Reports agree
	// about a VPN (microsoft/SDN#532) and Wi-Fi with an L2Bridge (hcsshim#1477), which are always
	// refused; a team worked (rke2#3517), or not (rke2#3515, eryph#139).
	KindRefused bool

	// CreateFailsAfterBind: the first network on an adapter binds a switch, is then refused so, and the switch is freed; 0: it
	// works (moby#33880).
	CreateFailsAfterBind hns.Code
	// DeleteSettles is how long after a network was deleted HNS refuses to create
	// one, with 0x80070490 (hcsshim#95).
	DeleteSettles time.Duration

	// GhostNetwork: the older API lists the networks that Admin.Ghost hides, and deletes them (calico#9120). Else no list
	// has them, and only Restart or Reboot removes them (hcsshim#850, K2s#1468).
	GhostNetwork bool

	// What HNS reads back of a network is not what was written.
	OtherCase    bool // types of networks and policies are in lower case
	HostBits     bool // subnets are given by their first address: 10.244.1.1/24
	OmitVSID     bool
	OmitGateway  bool
	OmitSubnets  bool
	OtherGateway bool // the gateway is the last address of the subnet

	// V2EndpointNotAttachable: an endpoint that was not created by v1 cannot be attached to
	// the host and is refused so, whatever its state; 0: it can (flannel#1112, where also one of v1 was refused).
	V2EndpointNotAttachable hns.Code
	// HostDefaultRoute: an endpoint that is attached to the host brings a default
	// route by the network's gateway, whatever its document says (flannel#1763).
	HostDefaultRoute bool
	SharedAddresses  bool // two endpoints may have the same address (Windows Server 2019, kubernetes#100962)

	// OverheadRefused: an endpoint with the policy EncapOverhead is refused so; 0:
	// the policy sets the MTU of the pod, which is 1450 otherwise (microsoft/SDN#517).
	OverheadRefused hns.Code

	// MaxOutBoundNAT: an endpoint with more policies OutBoundNAT is refused with 0x803b000d
	// (hcsshim#1951, calico#8465, plugins#1004); 0: any number.
	MaxOutBoundNAT int
	// PortPool: without direct server return, each policy with Destinations takes a share of the
	// ports, and when so many of them are taken, load balancers are refused with 0x8007000e
	// (plugins#613); 0: any number.
	PortPool int

	// EndpointCost is how long HNS takes to read one endpoint (kubernetes#109124: 5,000
	// took 110 minutes).
	EndpointCost time.Duration
	OnlyNames    bool // of the conditions of a query for endpoints, HNS obeys Name alone
	NoConditions bool // it obeys none

	// An endpoint whose namespace was deleted has its ID and state as before, or, with
	// ForgetNamespace, as one that was detached. With OmitNamespace, no document of an
	// endpoint has it: only that of the namespace has its endpoints.
	ForgetNamespace bool
	OmitNamespace   bool

	FirewallOff       bool   // the firewall filters nothing
	FirewallBlocksAll bool   // it blocks all inbound packets, even those that a rule allows
	UnreadRule        string // of the firewall rules of this name, nothing else can be read

	MaxPolicies      int      // a request with more of them is refused with E_INVALIDARG; 0: no limit
	HostRouteRefused hns.Code // the policy HostRoute is refused so; 0: it works

	AcceptDuplicates bool // adding an existing policy succeeds, and the network then has it twice
	PartialBatches   bool // policies before a refused one in the same request are applied
}

func (k Knobs) version() hns.Version {
	if k.Version == (hns.Version{}) {
		return hns.Version{Major: 13, Minor: 3}
	}
	return k.Version
}

// Fault makes matching calls fail or wait.
type Fault struct {
	Func  string        // e.g. HcnModifyNetwork; empty: any call of HNS; "*": any call of HNS or the IP stack
	Match string        // text that one of the arguments contains; empty: any
	Skip  int           // number of matching calls that succeed before
	Times int           // number of calls that it affects; 0: all until Heal
	Delay time.Duration // before the call
	Hang  bool          // the call waits for Heal and then works as usual
	Code  hns.Code      // the call does nothing and returns this; 0: it works
	After bool          // with Code: the call has its effect, but returns Code
}

// matches reports whether the fault applies to a call.
func (f *Fault) matches(function string, args []string) bool {
	if f.Func != function && f.Func != "*" && (f.Func != "" || !api.IsHNS(function)) { // "" stands for those of HNS
		return false
	}
	return f.Match == "" || strings.Contains(strings.Join(args, "\n"), f.Match)
}

// Fail adds a fault. If several match a call, the first one applies.
func (m *Machine) Fail(f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, &f)
}

// Heal removes all faults. Hanging and delayed calls continue.
func (m *Machine) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults, m.hung = nil, false
	close(m.healed)
	m.healed = make(chan struct{})
}

// Hung reports whether a call has met a Fault with Hang since the last Heal.
func (m *Machine) Hung() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hung
}

// Turn changes the knobs with the machine locked.
func (m *Machine) Turn(change func(*Knobs)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.knobs)
	pending := m.waiting
	m.waiting = nil
	for _, w := range pending {
		m.afterKnob(w.knob, w.act)
	}
}

// The knobs for afterKnob.
func outage(k Knobs) time.Duration       { return k.Outage }
func managementIP(k Knobs) time.Duration { return k.ManagementIP }
func drMAC(k Knobs) time.Duration        { return k.DRMAC }

// waiting is an event whose knob is negative.
type waiting struct {
	knob func(Knobs) time.Duration
	act  func()
}

// afterKnob calls act after the duration of a knob. If it is negative, the event waits
// until Turn changes the knobs, which reads the knob again. The caller holds the lock.
func (m *Machine) afterKnob(knob func(Knobs) time.Duration, act func()) {
	if d := knob(m.knobs); d >= 0 {
		m.afterFunc(d, act)
	} else {
		m.waiting = append(m.waiting, waiting{knob, act})
	}
}

// takeFault returns the fault that applies to this call, and counts it; the zero Fault,
// which does nothing, if there is none. The channel is closed by Heal. The caller does not
// hold the lock.
func (m *Machine) takeFault(function string, args []string) (Fault, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, f := range m.faults {
		if !f.matches(function, args) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		taken := *f
		m.hung = m.hung || f.Hang
		if f.Times--; f.Times == 0 { // one without a limit counts below 0
			m.faults = append(m.faults[:i:i], m.faults[i+1:]...)
		}
		return taken, m.healed
	}
	if function == "HcnQueryEndpointProperties" { // as slow as the knob says
		return Fault{Delay: m.knobs.EndpointCost}, m.healed
	}
	return Fault{}, nil
}

// wait waits as long as the fault says, or until healed is closed.
func (f Fault) wait(healed <-chan struct{}) {
	switch {
	case f.Hang:
		<-healed
	case f.Delay > 0:
		select {
		case <-time.After(f.Delay):
		case <-healed:
		}
	}
}
