package plugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// delegate is the configuration of the plugin that sets up the pod's network. Copies share
// conf, so that a method changes all of them.
type delegate struct {
	Type string // the name of its program
	conf object
}

// bytes returns the JSON that the delegate gets on stdin.
func (d delegate) bytes() []byte { return encode(d.conf) }

// version returns the CNI version of the delegate's configuration.
func (d delegate) version() string { return cmp.Or(d.conf.text("cniVersion"), "0.1.0") }

// newDelegate derives the delegate's configuration from the network
// configuration and the subnet file. system is a runtime.GOOS.
func newDelegate(c *conf, s subnetInfo, system string) (delegate, error) {
	d := delegate{conf: object{}}
	maps.Copy(d.conf, c.Delegate)
	for _, key := range []string{"name", "ipam"} {
		if d.conf.has(key) {
			return delegate{}, cniError(types.ErrInvalidNetworkConfig,
				"delegate: %q must not be set, it is derived from the network configuration", key)
		}
	}
	if d.conf.has("type") && d.conf.text("type") == "" {
		return delegate{}, cniError(types.ErrInvalidNetworkConfig, "delegate: type must be the name of a plugin")
	}
	d.conf.set("name", c.Name)
	if c.CNIVersion != "" {
		d.conf.set("cniVersion", c.CNIVersion)
	}
	if isSet(c.RuntimeConfig) {
		d.conf["runtimeConfig"] = c.RuntimeConfig
	}
	if system == "windows" {
		d.forWindows(s)
	} else if err := d.forLinux(c, s); err != nil {
		return delegate{}, err
	}
	d.Type = d.conf.text("type")
	if err := checkType(d.Type); err != nil {
		return delegate{}, cniError(types.ErrInvalidNetworkConfig, "delegate: type: %w", err)
	}
	return d, nil
}

// checkType returns an error unless name is the name of a program. It rejects
// "flannel", because the plugin would call itself endlessly.
func checkType(name string) error {
	switch {
	case name == "":
		return errors.New("missing")
	case strings.ContainsAny(name, `/\:`):
		return errors.New("must be the name of a plugin, not a path")
	case name == "flannel":
		return errors.New("flannel cannot be its own delegate")
	}
	return nil
}

// ipRange and route are objects in the configuration of IPAM, as host-local reads
// them.
type ipRange struct {
	Subnet netip.Prefix `json:"subnet"`
}

type route struct {
	Dst netip.Prefix `json:"dst"`
}

// forLinux sets what the network configuration leaves open, and IPAM.
func (d delegate) forLinux(c *conf, s subnetInfo) error {
	d.conf.setDefault("type", "bridge")
	// The packets are masqueraded once: by flanneld, or else by the delegate.
	d.conf.setDefault("ipMasq", !s.ipMasq)
	d.conf.setDefault("mtu", s.mtu)
	if d.conf.text("type") == "bridge" {
		d.conf.setDefault("isGateway", true)
	}
	ipam := object{}
	maps.Copy(ipam, c.IPAM)
	ipam.setDefault("type", "host-local")
	var routes []json.RawMessage
	if key, ok := ipam.key("routes"); ok {
		if err := json.Unmarshal(ipam[key], &routes); err != nil {
			return cniError(types.ErrInvalidNetworkConfig, "ipam.routes: %w", err)
		}
		delete(ipam, key)
	}
	for _, f := range s.families {
		for _, network := range f.networks {
			routes = append(routes, encode(route{network}))
		}
	}
	if key, ok := ipam.key("ranges"); ok { // in any spelling: the ranges are those of flanneld
		delete(ipam, key)
	}
	ipam.set("ranges", ranges(s))
	ipam.set("routes", routes)
	d.conf.set("ipam", ipam)
	return nil
}

// ranges returns one range set for each address family: host-local allocates
// one address from each set.
func ranges(s subnetInfo) (sets [][]ipRange) {
	for _, f := range s.families {
		sets = append(sets, []ipRange{{f.subnet}})
	}
	return sets
}

// forWindows is forLinux for Windows.
func (d delegate) forWindows(s subnetInfo) {
	d.conf.setDefault("type", "win-bridge")
	d.conf.setDefault("cniVersion", "0.2.0")
	// On Windows flanneld has no firewall rules, and HNS masquerades the packets of
	// endpoints for which the delegate requests that.
	d.conf.setDefault("ipMasq", s.ipMasq)
	d.conf.setDefault("ipMasqNetwork", s.families[0].networks[0]) // parseSubnet returns at least one of each
	ipam := object{}
	ipam.set("type", "host-local")
	// Only sdnbridge supports two addresses; the other delegates would ignore
	// the second one. A node with one family gets "subnet", because sdnbridge
	// does not derive a gateway from "ranges".
	if len(s.families) > 1 && d.conf.text("type") == "sdnbridge" {
		ipam.set("ranges", ranges(s))
	} else {
		ipam.set("subnet", s.families[0].subnet)
	}
	d.conf.set("ipam", ipam)
}

// subnets returns the subnets that the delegate allocates addresses from.
func (d delegate) subnets() (subnets []netip.Prefix) {
	var ipam struct {
		Subnet netip.Prefix
		Ranges [][]struct{ Subnet netip.Prefix }
	}
	if json.Unmarshal(d.conf["ipam"], &ipam) != nil {
		return nil
	}
	if ipam.Subnet.IsValid() {
		subnets = append(subnets, ipam.Subnet.Masked())
	}
	for _, set := range ipam.Ranges {
		for _, r := range set {
			subnets = append(subnets, r.Subnet.Masked())
		}
	}
	return subnets
}

// mtu returns the JSON text of the MTU, "" if it is not set: then the delegate chooses it.
func (d delegate) mtu() string {
	key, _ := d.conf.key("mtu")
	return string(d.conf[key])
}

// setPrevResult adds the result of ADD, which the runtime passes to DEL and
// CHECK. It is omitted if its CNI version is not that of the delegate's
// configuration: the version may have been changed since ADD.
func (d delegate) setPrevResult(c *conf) {
	if isSet(c.PrevResult) && d.version() == c.version() {
		d.conf["prevResult"] = c.PrevResult
	}
}
