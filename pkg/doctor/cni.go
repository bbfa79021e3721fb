package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"flannel/pkg/underlay"
)

// cniChecks returns the checks of the CNI configuration and plugins. The columns
// are those of daemonChecks.
func cniChecks() []Check {
	return []Check{
		{"FL301", "the first CNI configuration is flannel's",
			"the first CNI configuration is not flannel's", anySystem, needs{cniKnown}, cniConf},
		{"FL302", "the CNI plugins that the configuration calls are installed",
			"CNI plugins that the configuration calls are not installed, or its delegate is invalid", anySystem, needs{cniKnown, confCallsFlannel}, cniPlugins},
		{"FL303", "containerd's directories for CNI exist",
			"containerd's directories for CNI do not exist, or its configuration cannot be read", anySystem, needs{cniKnown}, cniDirs},
	}
}

// plugin holds those parts of a plugin's configuration that the checks need.
// The format is defined by the CNI specification and by the flannel plugin's
// documentation (cni.dev).
type plugin struct {
	Name         string                `json:"name"` // of the network
	Type         string                `json:"type"`
	Bridge       string                `json:"bridge"`
	SubnetFile   string                `json:"subnetFile"` // of the flannel plugin; "": defaultSubnetFile
	IPAM         struct{ Type string } `json:"ipam"`
	DNS          struct{ Nameservers []any }
	Capabilities map[string]any `json:"capabilities"`
	Delegate     *delegate      `json:"delegate"`
}

// delegate is the configuration of a plugin that another one calls. The flannel plugin refuses
// one with a name or ipam, also null.
type delegate struct {
	plugin
	Name json.RawMessage `json:"name"`
	IPAM json.RawMessage `json:"ipam"`
	// Of the plugin bridge. nil: the flannel plugin sets it to true.
	IsGateway                      *bool
	IsDefaultGateway, ForceAddress bool
}

// parseCNI parses the content of a .conf file, which has one plugin, or a
// .conflist file. It returns at least one plugin.
func parseCNI(text string) ([]plugin, error) {
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	if list.Plugins == nil && list.Type != "" {
		list.Plugins = []plugin{list.plugin}
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("no plugins")
	}
	for i := range list.Plugins { // a .conflist has the network's name beside the plugins
		list.Plugins[i].Name = list.Name
	}
	return list.Plugins, nil
}

// broken returns the files that could not be read or are no configurations, with the
// reasons. One of them may be flannel's.
func (c CNI) broken() (texts []string) {
	for _, f := range c.Files {
		if why, unread := c.Unread[f.Name]; unread {
			texts = append(texts, f.Name+": "+why)
		} else if _, err := parseCNI(f.Text); err != nil {
			texts = append(texts, fmt.Sprintf("%s: %v", f.Name, err))
		}
	}
	return texts
}

// unreadPlugin returns why it is not known which file runtimes run as a plugin; "": Plugins
// has it, or there is none.
func (c CNI) unreadPlugin(name string) string {
	_, found := c.Plugins[name]
	for _, dir := range strings.Split(c.BinDir, ", ") {
		if why, unread := c.Unread[dir+"/"+name]; unread {
			return why
		}
		if why, unread := c.Unread[dir]; unread && !found { // found: in a directory before this one
			return why
		}
	}
	return ""
}

// flannelConf returns the first configuration that calls the flannel plugin,
// and its plugins; no plugins: none of those that can be read does.
func (s Snapshot) flannelConf() (file CNIFile, plugins []plugin) {
	for _, f := range s.CNI.Value.Files {
		plugins, err := parseCNI(f.Text)
		if err == nil && slices.ContainsFunc(plugins, func(p plugin) bool { return p.Type == "flannel" }) {
			return f, plugins
		}
	}
	return CNIFile{}, nil
}

// Defaults of the plugins flannel and bridge.
const (
	defaultSubnetFile = "/run/flannel/subnet.env" // also of flanneld
	defaultBridge     = "cni0"
)

// ownPlugin returns the flannel plugin of the first configuration with this daemon's subnet
// file; false: there is none. On a host with several flannelds, the others have subnet
// files and bridges of their own.
func (s Snapshot) ownPlugin() (own plugin, found bool) {
	for _, f := range s.CNI.Value.Files {
		plugins, _ := parseCNI(f.Text) // none after an error
		for _, p := range plugins {
			if p.Type == "flannel" && realPath(cmp.Or(p.SubnetFile, defaultSubnetFile)) == realPath(s.SubnetFile) {
				return p, true
			}
		}
	}
	return plugin{}, false
}

// otherDelegate returns the type of the delegate if that is not the plugin bridge, otherwise "".
func (p plugin) otherDelegate() string {
	if p.Delegate == nil || p.Delegate.Type == "bridge" {
		return ""
	}
	return p.Delegate.Type
}

// realPath returns a path without the link /var/run.
func realPath(p string) string {
	p = path.Clean(p)
	if rest, isLink := strings.CutPrefix(p, "/var/run/"); isLink {
		return "/run/" + rest
	}
	return p
}

// bridgeName returns the name of the pods' bridge by the own CNI configuration. If there is
// none, or it is unread, the name is cni0 if cni0 has an address of the pod network: cni0
// may be of another program, or of another flanneld, whose network does not overlap.
// "": the pods have no bridge, or it is not known.
func (s Snapshot) bridgeName() string {
	own, found := s.ownPlugin()
	switch d := own.Delegate; {
	case !found && !s.inPodNetwork(defaultBridge):
		return ""
	case d == nil:
		return defaultBridge
	case own.otherDelegate() != "":
		return ""
	default:
		return cmp.Or(d.Bridge, defaultBridge)
	}
}

// inPodNetwork reports whether an interface has an address of the pod network, of this
// node's subnet or of an earlier one.
func (s Snapshot) inPodNetwork(name string) bool {
	return s.hasAddress(name, func(a netip.Addr) bool {
		return slices.ContainsFunc(s.podNetworks(), func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// hasAddress reports whether an interface has an address for which is returns true.
func (s Snapshot) hasAddress(name string, is func(netip.Addr) bool) bool {
	return slices.ContainsFunc(s.Interfaces.Value.Interfaces, func(in underlay.Interface) bool {
		return in.Name == name && slices.ContainsFunc(in.Addrs, func(a underlay.Addr) bool { return is(a.IP) })
	})
}

// cniConf finds a configuration that sorts before flannel's, for example of a
// network that was installed before: runtimes use the first file only.
func cniConf(s Snapshot) Finding {
	const install = "Let flanneld install it (--cni-conf-from and --cni-conf-to, as in the Kubernetes manifest), " +
		"or on Windows run flanneld cni-conf."
	c := s.CNI.Value
	if len(c.Files) == 0 {
		return warn(install, "no configuration in %s", c.ConfDir)
	}
	conf, plugins := s.flannelConf()
	first, broken := c.Files[0], c.broken()
	_, err := parseCNI(first.Text)
	switch why, unread := c.Unread[first.Name]; {
	case unread:
		return undecidable("runtimes use %s, which could not be read: %s", first.Name, why)
	case err != nil:
		return fail("Correct or remove it: runtimes use the first file by name.", "%s: %v", first.Name, err)
	case len(plugins) == 0 && len(broken) > 0:
		return warn("If one of the files that are unread or malformed is flannel's, correct or remove it. "+install,
			"runtimes use %s, which does not call flannel; unread or malformed: %s", first.Name, several(broken))
	case len(plugins) == 0:
		return warn(install, "none of %s calls flannel; runtimes use %s", fileNames(c.Files), first.Name)
	case conf.Name != first.Name:
		return fail("Remove it, or give it a name that sorts after flannel's.",
			"runtimes use %s, which sorts before %s", first.Name, conf.Name)
	}
	return ok("%s", conf.Name)
}

// fileNames returns the names of files for a text.
func fileNames(files []CNIFile) string {
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	return several(names)
}

// cniPlugins finds missing plugins. Without this check, only the events of a
// pod that does not start name them.
func cniPlugins(s Snapshot) Finding {
	dir, _, _ := strings.Cut(s.CNI.Value.BinDir, ", ")
	install := "Put them into " + dir + ": flanneld install-cni installs flannel's own. The others are in the archive " +
		"cni-plugins of containernetworking/plugins; a distribution's package may install them elsewhere."
	if s.OS == "windows" {
		install = "Run flanneld install-cni. Without --plugin-to it installs them where containerd looks (flanneld cni-dirs)."
	}
	conf, plugins := s.flannelConf()
	var problems, unknown []string
	names := calledPlugins(plugins, s.OS)
	for _, name := range names {
		why := s.CNI.Value.unreadPlugin(name)
		switch executable, exists := s.CNI.Value.Plugins[name]; {
		case why != "":
			unknown = append(unknown, name+": "+why)
		case !exists:
			problems = append(problems, name+" is missing")
		case !executable:
			problems = append(problems, name+" is not executable")
		}
	}
	refused := refusedKeys(plugins)
	switch {
	case len(refused) > 0:
		keys := strings.Join(refused, " and ")
		fix := "Remove " + keys + ": the plugin flannel sets the name, and the keys of ipam belong beside delegate."
		seen := fmt.Sprintf("the plugin flannel refuses %s in %s", keys, conf.Name)
		if len(problems) == 0 || s.CNI.Value.Plugins == nil {
			return fail(fix, "%s", seen)
		}
		return fail(fix+" "+install, "%s; in %s: %s", seen, s.CNI.Value.BinDir, several(problems))
	case len(problems) == 0 && len(unknown) > 0:
		return undecidable("not known whether there is %s", several(unknown))
	case s.CNI.Value.Plugins == nil && s.OS == "windows": // nil: no directory of BinDir was read
		return fail(install, "%s does not exist", s.CNI.Value.BinDir)
	case s.CNI.Value.Plugins == nil:
		return skip("%s does not exist here; in a container, the host's directory may not be mounted",
			s.CNI.Value.BinDir)
	case len(problems) > 0:
		return fail(install, "in %s: %s", s.CNI.Value.BinDir, several(problems))
	}
	return ok("%s", strings.Join(names, ", "))
}

// refusedKeys returns the keys of the delegate that the flannel plugin refuses.
func refusedKeys(plugins []plugin) (keys []string) {
	for _, p := range plugins {
		if d := p.Delegate; p.Type == "flannel" && d != nil {
			if d.Name != nil {
				keys = append(keys, "delegate.name")
			}
			if d.IPAM != nil {
				keys = append(keys, "delegate.ipam")
			}
		}
	}
	return keys
}

// cniDirs finds directories that containerd's configuration names and that do not
// exist: whatever is installed elsewhere, containerd does not find it.
func cniDirs(s Snapshot) Finding {
	if problem := s.CNI.Value.Problem; problem != "" {
		return warn("Correct conf_dir, bin_dir or bin_dirs in containerd's configuration and restart containerd, or "+
			"install the files there: flanneld cni-dirs shows the directories.", "%s", problem)
	}
	return ok("%s, %s", s.CNI.Value.ConfDir, s.CNI.Value.BinDir)
}

// calledPlugins returns the names of the programs that a configuration calls.
// The flannel plugin calls the one that its delegate names (default on Linux:
// bridge), and that calls an IPAM plugin: host-local, or on Linux another one that
// flannel's configuration names.
func calledPlugins(plugins []plugin, os string) []string {
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, p := range plugins {
		add(p.Type)
		if p.Type != "flannel" {
			add(p.IPAM.Type)
			continue
		}
		delegate, ipam := "", "host-local"
		if os == "linux" {
			delegate, ipam = "bridge", cmp.Or(p.IPAM.Type, ipam)
		}
		if p.Delegate != nil {
			delegate = cmp.Or(p.Delegate.Type, delegate)
		}
		add(delegate)
		add(ipam)
	}
	return names
}
