package doctor

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

func cniChecks() []Check {
	return []Check{
		{"FL301", "the CNI configuration that runtimes take is flannel's", anySystem, cniConf},
		{"FL302", "every plugin that it calls is there", anySystem, cniPlugins},
	}
}

// plugin is what these checks must know of a plugin's configuration. The formats are those of the CNI specification
// and of the flannel plugin's documentation (cni.dev).
type plugin struct {
	Name         string `json:"name"` // of the network
	Type         string `json:"type"`
	Bridge       string `json:"bridge"`
	IPAM         struct{ Type string }
	DNS          struct{ Nameservers []any }
	Capabilities map[string]any `json:"capabilities"`
	Delegate     *plugin        `json:"delegate"`
}

// parseCNI reads a .conf or a .conflist.
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
	for i := range list.Plugins { // the plugins of a list have no name of their own
		list.Plugins[i].Name = list.Name
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("it names no plugin")
	}
	return list.Plugins, nil
}

// flannelConf is the first configuration that calls the flannel plugin.
func (s Snapshot) flannelConf() (name string, plugins []plugin) {
	for _, f := range s.CNI.Value.Files {
		all, err := parseCNI(f.Text)
		if err == nil && slices.ContainsFunc(all, func(p plugin) bool { return p.Type == "flannel" }) {
			return f.Name, all
		}
	}
	return "", nil
}

// bridgeNames are the bridges of the flannel configuration.
func (s Snapshot) bridgeNames() []string {
	names := []string{"cni0"}
	_, plugins := s.flannelConf()
	for _, p := range plugins {
		if p.Delegate != nil && p.Delegate.Bridge != "" {
			names = append(names, p.Delegate.Bridge)
		}
	}
	return names
}

// cniConf minds the order of names: runtimes take the first file, so one that another network has left wins over ours.
func cniConf(s Snapshot) Finding {
	const install = "Let flanneld keep it in place (--cni-conf-from and --cni-conf-to; the Kubernetes manifest does so), or on Windows write it by flanneld cni-conf."
	if !s.CNI.Known {
		return s.CNI.missing()
	}
	c := s.CNI.Value
	if len(c.Files) == 0 {
		return warn(install, "there is no configuration in %s", c.ConfDir)
	}
	name, _ := s.flannelConf()
	first := c.Files[0]
	_, err := parseCNI(first.Text)
	switch {
	case err != nil:
		return fail("Correct it or remove it: runtimes take the first file by name.", "%s: %v", first.Name, err)
	case name == "":
		return warn(install, "none of %s calls flannel; runtimes take %s", fileNames(c.Files), first.Name)
	case name != first.Name:
		return fail("Remove it, or give it a name that sorts after flannel's.", "runtimes take %s, which comes before %s", first.Name, name)
	}
	return ok("%s", name)
}

func fileNames(files []CNIFile) string {
	var all []string
	for _, f := range files {
		all = append(all, f.Name)
	}
	return several(all)
}

// cniPlugins finds what kubelet says only in the events of a pod that never starts.
func cniPlugins(s Snapshot) Finding {
	install := "Install them: flannel's own comes with our image (flanneld install-cni), the others with the distribution's containernetworking-plugins."
	if s.OS == "windows" {
		install = "Install them by flanneld install-cni; if containerd's bin_dir is another directory, there, and give it by --cni-bin-dir."
	}
	_, plugins := s.flannelConf()
	switch {
	case !s.CNI.Known:
		return s.CNI.missing()
	case len(plugins) == 0:
		return skip("there is no configuration of flannel that would name them")
	case s.CNI.Value.Plugins == nil && s.OS == "windows":
		return fail(install, "there is no %s", s.CNI.Value.BinDir)
	case s.CNI.Value.Plugins == nil:
		return skip("there is no %s here; in a container, that of the host may not be mounted", s.CNI.Value.BinDir)
	}
	var gone []string
	for _, name := range needed(plugins, s.OS) {
		switch runs, there := s.CNI.Value.Plugins[name]; {
		case !there:
			gone = append(gone, name+" is missing")
		case !runs:
			gone = append(gone, name+" cannot be run")
		}
	}
	if len(gone) > 0 {
		return fail(install, "in %s: %s", s.CNI.Value.BinDir, several(gone))
	}
	return ok("%s", strings.Join(needed(plugins, s.OS), ", "))
}

// needed lists the programs that a configuration calls: flannel calls bridge on Linux and what its delegate names
// elsewhere, with host-local for addresses.
func needed(plugins []plugin, os string) []string {
	var all []string
	add := func(name string) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for _, p := range plugins {
		add(p.Type)
		add(p.IPAM.Type)
		if p.Type != "flannel" {
			continue
		}
		delegate, ipam := "", "host-local"
		if os == "linux" {
			delegate = "bridge"
		}
		if p.Delegate != nil {
			delegate, ipam = or(p.Delegate.Type, delegate), or(p.Delegate.IPAM.Type, ipam)
		}
		add(delegate)
		add(ipam)
	}
	return all
}
