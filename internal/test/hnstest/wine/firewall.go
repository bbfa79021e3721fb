package wine

import (
	"strconv"
	"strings"
	"sync"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// The DLL of the firewall (hnetcfg.dll) offers the COM objects of the Windows Firewall. For
// each use of a member it makes a call NetFw with four arguments: the name of an object, the
// name of its member, "get" or "put", and a value. Values are a letter and a text:
//
//	i 17         a number
//	b 1          true
//	s flanneld   a string
//	o rule-7     an object
//	l a b c      an enumerator of objects
//
// (without the space), or nothing for an empty value. The objects are policy (INetFwPolicy2),
// rules (the collection), and one for each rule that a program has: rule-1 and so on. The
// member "new" of "policy" or "rule" creates an object.

// ruleObjects are the objects of rules that programs have, by name. They are copies: a change
// of a property does not change the machine's rule, only the member Add of rules does.
type ruleObjects struct {
	mu      sync.Mutex
	objects map[string]map[string]string // property to value
}

// add adds an object with these properties, and returns its name.
func (r *ruleObjects) add(properties map[string]string) (name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.objects == nil {
		r.objects = map[string]map[string]string{}
	}
	name = "rule-" + strconv.Itoa(len(r.objects)+1)
	r.objects[name] = properties
	return name
}

// call makes a call NetFw on the machine, and returns its value. The first case that fits
// counts.
func (r *ruleObjects) call(m *hnstest.Machine, args [][]byte) (string, hns.Code) {
	if len(args) != 4 {
		return "", api.InvalidArg
	}
	object, member, value := string(args[0]), string(args[1]), string(args[3])
	switch {
	case member == "new" && object == "policy":
		return "policy", 0
	case member == "new" && object == "rule":
		return r.add(map[string]string{"Enabled": "b0", "Direction": "i1", "Action": "i1", "Protocol": "i256", "Profiles": "i" + strconv.Itoa(hns.AllProfiles)}), 0
	case object == "policy" && member == "Rules":
		return "orules", 0
	case object == "policy":
		return profileProperty(m, member, value)
	case object == "rules" && member == "_NewEnum":
		_, err := m.FirewallRules() // for the log and for faults
		var names []string
		for _, rule := range m.Admin().FirewallRules() { // of all protocols, as in Windows
			names = append(names, r.add(ruleProperties(rule)))
		}
		return "l" + strings.Join(names, " "), code(err)
	case object == "rules" && member == "Remove":
		return "", code(m.RemoveFirewallRule(strings.TrimPrefix(value, "s")))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if object == "rules" && member == "Add" {
		return "", code(m.AddFirewallRule(ruleOf(r.objects[strings.TrimPrefix(value, "o")])))
	}
	properties, known := r.objects[object]
	if !known {
		return "", api.InvalidArg
	}
	unread := ""
	m.Turn(func(k *hnstest.Knobs) { unread = k.UnreadRule }) // only reads the knob
	switch {
	case string(args[2]) == "get" && unread != "" && properties["Name"] == "s"+unread && member != "Name":
		return "", hns.RPCCallFailed
	case string(args[2]) == "put":
		properties[member] = value
	}
	return properties[member], 0
}

// profileProperty returns a property of INetFwPolicy2; value is a profile.
func profileProperty(m *hnstest.Machine, member, value string) (string, hns.Code) {
	profiles, err := m.FirewallProfiles()
	if err != nil {
		return "", code(err)
	}
	active := 0 // a bit for each active profile
	for _, p := range profiles {
		active += p.Type
		if value != integer(p.Type) {
			continue
		}
		switch member {
		case "FirewallEnabled":
			return boolean(p.On), 0
		case "BlockAllInboundTraffic":
			return boolean(p.BlocksAll), 0
		case "DefaultInboundAction":
			return action(p.Allows), 0
		}
	}
	if member == "CurrentProfileTypes" {
		return integer(active), 0
	}
	return "", api.InvalidArg
}

func integer(n int) string { return "i" + strconv.Itoa(n) }

func boolean(b bool) string { return "b" + strconv.Itoa(int(flag(b))) }

func action(allow bool) string { return "i" + strconv.Itoa(int(flag(allow))) }

// ruleProperties returns the properties of a rule that the machine has. Windows
// has "*" for what is not limited.
func ruleProperties(r hns.FirewallRule) map[string]string {
	p := map[string]string{"Name": "s" + r.Name, "Enabled": boolean(r.Enabled), "Direction": "i1", "Action": action(r.Allow),
		"Protocol": integer(r.Protocol), "LocalPorts": "s" + r.Ports, "Profiles": integer(r.Profiles),
		"LocalAddresses": "s*", "RemoteAddresses": "s*", "RemotePorts": "s*", "InterfaceTypes": "sAll"}
	if r.Limited {
		p["ApplicationName"] = `sC:\program.exe`
	}
	return p
}

// ruleOf is the inverse of ruleProperties.
func ruleOf(p map[string]string) hns.FirewallRule {
	number := func(name string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(p[name], "i"))
		return n
	}
	return hns.FirewallRule{Name: strings.TrimPrefix(p["Name"], "s"), Enabled: p["Enabled"] == "b1", Allow: number("Action") == 1,
		Protocol: number("Protocol"), Ports: strings.TrimPrefix(p["LocalPorts"], "s"), Profiles: number("Profiles"),
		Limited: p["ApplicationName"] != ""}
}
