package hnstest

import (
	"strings"
	"time"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// Knobs say how the machine behaves. With the zero value all is well and takes no time.
type Knobs struct {
	Version hns.Version // of HNS; zero: 13.3 (Windows Server 2022)
	Down    bool        // HNS is not up (yet): each call fails at once
	Silent  bool        // HNS has no notifications

	// Outage is how long an adapter's addresses are nowhere after its first network was made or its last one deleted;
	// negative, here and in what follows: until this is turned to something else.
	Outage time.Duration
	// ManagementIP is how long after that HNS knows the host's address.
	ManagementIP time.Duration
	// FirstIP makes HNS keep the address of a network's that it saw first, be it one that the host has no more.
	FirstIP bool
	// DRMAC is how long after the network was made its MAC is known.
	DRMAC time.Duration

	// What does not come through the move to the virtual adapter.
	APIPA       bool // IPv4 addresses: 169.254.149.216/16 takes their place, by DHCP in vain
	LoseDNS     bool
	LoseGateway bool // default routes
	LoseMetric  bool // of default routes: 0 after it
	LoseRoutes  bool // all that programs made beside default routes, e.g. to 169.254.169.254
	KillTCP     bool // connections from the addresses die at once, not only by their timeouts

	AcceptDuplicates bool // a policy that is there may be added once more, and is there twice then
	PartialBatches   bool // policies before a refused one of the same request stay
}

func (k Knobs) version() hns.Version {
	if k.Version == (hns.Version{}) {
		return hns.Version{Major: 13, Minor: 3}
	}
	return k.Version
}

// Fault makes calls fail or wait.
type Fault struct {
	Func  string        // e.g. HcnModifyNetwork; empty: any call of HNS; "*": any call, of the IP stack too
	Match string        // that one of the arguments contains; empty: any
	Skip  int           // how many calls that it would hit go well before
	Times int           // how many calls; 0: all until Heal
	Delay time.Duration // before the call
	Hang  bool          // it does not return before Heal, and then does as if nothing was
	Code  hns.Code      // it returns this and does nothing; 0: it works
	// After does it first: the call has its effect, and its caller learns of an error nevertheless.
	After bool
}

func (f *Fault) hits(function string, args []string) bool {
	if f.Func != function && f.Func != "*" && (f.Func != "" || !api.IsHNS(function)) {
		return false
	}
	return f.Match == "" || strings.Contains(strings.Join(args, "\n"), f.Match)
}

// Fail adds a fault; the first that hits a call is taken.
func (m *Machine) Fail(f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, &f)
}

// Heal ends all faults, and with them what hangs.
func (m *Machine) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = nil
	close(m.healed)
	m.healed = make(chan struct{})
}

// Turn changes knobs.
func (m *Machine) Turn(change func(*Knobs)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.knobs)
	all := m.waiting
	m.waiting = nil
	for _, h := range all {
		m.after(h.knob, h.act)
	}
}

func outage(k Knobs) time.Duration       { return k.Outage }
func managementIP(k Knobs) time.Duration { return k.ManagementIP }
func drMAC(k Knobs) time.Duration        { return k.DRMAC }

// waiting is what waits for a knob to be turned.
type waiting struct {
	knob func(Knobs) time.Duration
	act  func()
}

// after does something when what a knob says has passed.
func (m *Machine) after(knob func(Knobs) time.Duration, act func()) {
	if d := knob(m.knobs); d >= 0 {
		m.later(d, act)
	} else {
		m.waiting = append(m.waiting, waiting{knob, act})
	}
}

// fault takes the fault that hits this call, if any.
func (m *Machine) fault(function string, args []string) (Fault, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, f := range m.faults {
		if !f.hits(function, args) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		taken := *f
		if f.Times--; f.Times == 0 {
			m.faults = append(m.faults[:i:i], m.faults[i+1:]...)
		}
		return taken, m.healed
	}
	return Fault{}, nil
}

// wait is the fault's delay, ended by Heal.
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
