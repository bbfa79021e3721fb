package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/file"
	"flannel/pkg/hns"
)

// journal is the file hns.json beside the subnet file. It survives a crash between any two steps: what an adapter had
// is written down before a switch takes it away, and stays there until all of it is back.
type journal struct {
	// Networks are the names of HNS networks that we made or took over: ours, whatever they are called.
	Networks []string `json:",omitempty"`
	// Switches are those that Prepare made, which no daemon deletes.
	Switches []string `json:",omitempty"`
	Before   *before  `json:",omitempty"`
}

// list is where the name of a device's network stands.
func (j *journal) list(dev device) *[]string {
	if dev.Switch {
		return &j.Switches
	}
	return &j.Networks
}

// before is what the host had on an adapter when all was well.
type before struct {
	Written   time.Time
	Adapter   string // the physical one's name
	GUID      string // and what stays when it is renamed
	DHCP      bool
	Addresses []savedAddress
	Routes    []savedRoute `json:",omitempty"` // those that programs made, the DHCP client among them
	DNS       []netip.Addr `json:",omitempty"`
}

// without leaves out the routes into some networks.
func (b *before) without(networks []netip.Prefix) *before {
	c := *b
	c.Routes = slices.DeleteFunc(slices.Clone(b.Routes), func(r savedRoute) bool { return driver.Inside(r.Dst, networks) })
	return &c
}

type savedAddress struct {
	Prefix netip.Prefix
	Manual bool // else it comes by DHCP or router advertisement
}

type savedRoute struct {
	Dst     netip.Prefix
	NextHop netip.Addr // unspecified: on-link
	Metric  int
}

// maxJournal bounds what is read of a file that another hand may have written, in bytes.
const maxJournal = 1 << 20

// readJournal takes a file that is not there for an empty one.
func readJournal(path string) (j journal, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return j, nil
	case err == nil && info.Size() > maxJournal:
		return j, fmt.Errorf("%s has %d bytes, which cannot be", path, info.Size())
	}
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &j)
	}
	if err != nil {
		return journal{}, fmt.Errorf("read %s: %w", path, err)
	}
	return j, nil
}

// writeJournal removes a file that would say nothing.
func writeJournal(path string, j journal) error {
	if len(j.Networks)+len(j.Switches) == 0 && j.Before == nil {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	raw, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = file.Replace(path, append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write down what the adapter has: %w", err)
	}
	return nil
}

// snapshot is what host, the adapter with the host's addresses, has. physical is itself or what is behind it.
func snapshot(host, physical hns.Adapter, routes []hns.Route) *before {
	b := &before{Written: time.Now().UTC().Truncate(time.Second), Adapter: physical.Name, GUID: physical.GUID, DHCP: host.DHCP, DNS: host.DNS}
	for _, a := range addresses(host) {
		if !a.Temporary {
			b.Addresses = append(b.Addresses, savedAddress{a.Prefix, a.Manual})
		}
	}
	for _, r := range routes {
		if r.Index == host.Index && r.Ours {
			b.Routes = append(b.Routes, savedRoute{r.Dst, r.NextHop, r.Metric})
		}
	}
	return b
}

// same tells whether two snapshots say the same, whenever they were taken.
func (b *before) same(o *before) bool {
	return b != nil && o != nil && b.Adapter == o.Adapter && b.GUID == o.GUID && b.DHCP == o.DHCP &&
		slices.Equal(b.Addresses, o.Addresses) && slices.Equal(b.Routes, o.Routes) && slices.Equal(b.DNS, o.DNS)
}

// lost is what an adapter had and has no more.
type lost struct {
	manual []netip.Prefix // addresses that a person set: nobody else will put them back
	leased []netip.Prefix // an IPv4 address that DHCP gave
	routes []savedRoute
	dns    []netip.Addr
}

func (l lost) addresses() bool { return len(l.manual)+len(l.leased) > 0 }
func (l lost) nothing() bool   { return !l.addresses() && len(l.routes)+len(l.dns) == 0 }

// missing compares. In a family in which the adapter has addresses, and none of them is known, somebody has given it
// new ones: nothing is missing there. IPv6 addresses that routers announce come back by themselves.
func (b *before) missing(host hns.Adapter, routes []hns.Route) (l lost) {
	var kept, foreign [2]bool // IPv4, IPv6
	for _, a := range addresses(host) {
		family := index(a.Prefix.Addr())
		known := slices.ContainsFunc(b.Addresses, func(s savedAddress) bool { return s.Prefix.Addr() == a.Prefix.Addr() })
		kept[family] = kept[family] || known
		foreign[family] = foreign[family] || !known
	}
	for i := range foreign {
		foreign[i] = foreign[i] && !kept[i]
	}
	for _, a := range b.Addresses {
		switch ip := a.Prefix.Addr(); {
		case foreign[index(ip)] || hasAddress(host, ip):
		case a.Manual:
			l.manual = append(l.manual, a.Prefix)
		case ip.Is4():
			l.leased = append(l.leased, a.Prefix)
		}
	}
	for _, r := range b.Routes {
		there := slices.ContainsFunc(routes, func(o hns.Route) bool {
			return o.Index == host.Index && o.Dst == r.Dst && o.NextHop == r.NextHop && o.Metric == r.Metric
		})
		if !there && !foreign[index(r.Dst.Addr())] {
			l.routes = append(l.routes, r)
		}
	}
	gone := slices.ContainsFunc(b.DNS, func(a netip.Addr) bool { return !slices.Contains(host.DNS, a) })
	if gone && !foreign[0] && (!b.DHCP || len(host.DNS) == 0) {
		l.dns = b.DNS
	}
	return l
}

func index(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}
