package hns

// This file uses the COM interface of the Windows Firewall (https://learn.microsoft.com/windows/win32/api/netfw), by
// IDispatch, because the interfaces are dual:
//
//	INetFwPolicy2: CurrentProfileTypes, FirewallEnabled(profile), BlockAllInboundTraffic(profile),
//	  DefaultInboundAction(profile), Rules
//	INetFwRules: _NewEnum, Add(rule), Remove(name)
//	INetFwRule: Name, Grouping, Description, Enabled, Direction, Action, Protocol, LocalPorts, Profiles, and what limits
//	  a rule: ApplicationName, ServiceName, LocalAddresses, RemoteAddresses, RemotePorts, Interfaces, InterfaceTypes

import (
	"errors"
	"runtime"
	"strings"

	"github.com/go-ole/go-ole"
)

var (
	clsidPolicy = ole.NewGUID("{E2B3C97F-6AE1-41AC-817A-F6F92166D7DD}") // HNetCfg.FwPolicy2
	clsidRule   = ole.NewGUID("{2C5BC43E-3369-4C33-AB0C-BE9469677AF4}") // HNetCfg.FwRule
)

// Values of NET_FW_RULE_DIRECTION and NET_FW_ACTION.
const (
	directionIn = 1
	actionAllow = 1
)

// netFirewall implements Firewall with the Windows Firewall of this machine.
type netFirewall struct{}

// OpenFirewall returns the Windows Firewall of this machine.
func OpenFirewall() (Firewall, error) { return netFirewall{}, nil }

// dispatch reads and sets properties of a COM object until the first error, which stays in err: its methods then do
// nothing and return the zero value, and the caller looks at err once. One call of withCOM has made it, and uses it on
// its goroutine alone.
type dispatch struct {
	*ole.IDispatch
	err error
}

// get returns a property, an empty one after an error. The caller clears it, which frees what it holds.
func (d *dispatch) get(name string, args ...any) *ole.VARIANT {
	if d.err != nil {
		return &ole.VARIANT{}
	}
	v, err := d.GetProperty(name, args...)
	if err != nil {
		d.err = comError(name, err)
		return &ole.VARIANT{}
	}
	return v
}

// value returns a property as a Go value; nil: it is empty, or an array.
func (d *dispatch) value(name string, args ...any) any {
	v := d.get(name, args...)
	defer func() { _ = v.Clear() }() // after an error, the value leaks
	return v.Value()
}

// text returns a property that is a text; "": it is no text, or empty.
func (d *dispatch) text(name string) string {
	s, _ := d.value(name).(string)
	return s
}

// number returns a property that is a number; 0: it is no number.
func (d *dispatch) number(name string, args ...any) int {
	n, _ := d.value(name, args...).(int32)
	return int(n)
}

// flag returns a property that is on or off; false: it is neither.
func (d *dispatch) flag(name string, args ...any) bool {
	on, _ := d.value(name, args...).(bool)
	return on
}

// put sets a property.
func (d *dispatch) put(name string, value any) {
	if d.err == nil {
		_, err := d.PutProperty(name, value)
		d.err = comError(name, err)
	}
}

// withPolicy calls f with INetFwPolicy2.
func withPolicy(f func(policy *dispatch) error) error {
	return withCOM(func() error {
		policy, err := create(clsidPolicy)
		if err != nil {
			return err
		}
		defer policy.Release()
		return f(policy)
	})
}

// withCOM calls f on a thread of the multithreaded apartment: a single-threaded one would need a window and a message
// loop. If another library has made an apartment for the thread (RPC_E_CHANGED_MODE), that one will do.
func withCOM(f func() error) error {
	runtime.LockOSThread() // COM is initialized for a thread
	defer runtime.UnlockOSThread()
	const alreadyInitialized, otherApartment = 1, 0x80010106 // S_FALSE, RPC_E_CHANGED_MODE
	err := ole.CoInitializeEx(0, ole.COINIT_MULTITHREADED)
	o, _ := errors.AsType[*ole.OleError](err)
	switch {
	case err == nil, o != nil && o.Code() == alreadyInitialized: // both have to be undone
		defer ole.CoUninitialize()
	case o == nil || o.Code() != otherApartment:
		return comError("CoInitializeEx", err)
	}
	return f()
}

// create makes a COM object of a class. Without an error, the caller releases it.
func create(class *ole.GUID) (*dispatch, error) {
	unknown, err := ole.CreateInstance(class, ole.IID_IDispatch)
	if err != nil {
		return nil, comError("CoCreateInstance", err)
	}
	// The result is the IDispatch that was asked for, but has the type IUnknown.
	object, err := unknown.QueryInterface(ole.IID_IDispatch)
	unknown.Release()
	return &dispatch{IDispatch: object}, comError("QueryInterface", err)
}

// withRules calls f with INetFwRules.
func withRules(f func(rules *dispatch) error) error {
	return withPolicy(func(policy *dispatch) error {
		v := policy.get("Rules")
		defer func() { _ = v.Clear() }() // releases the object
		if policy.err != nil {
			return policy.err
		}
		rules := v.ToIDispatch()
		if rules == nil {
			return &Error{Call: "Rules", Code: unspecified} // it is no object
		}
		return f(&dispatch{IDispatch: rules})
	})
}

// FirewallProfiles implements Firewall.
func (netFirewall) FirewallProfiles() (profiles []FirewallProfile, err error) {
	err = withPolicy(func(policy *dispatch) error {
		active := policy.number("CurrentProfileTypes")
		for _, t := range []int{DomainProfile, PrivateProfile, PublicProfile} {
			if active&t == 0 {
				continue
			}
			profiles = append(profiles, FirewallProfile{Type: t,
				On:        policy.flag("FirewallEnabled", int32(t)),
				BlocksAll: policy.flag("BlockAllInboundTraffic", int32(t)),
				Allows:    policy.number("DefaultInboundAction", int32(t)) == actionAllow,
			})
		}
		return policy.err
	})
	return profiles, err
}

// FirewallRules implements Firewall.
func (netFirewall) FirewallRules() (all []FirewallRule, err error) {
	err = withRules(func(rules *dispatch) error {
		return rules.each(func(rule *dispatch) error {
			r, relevant, err := readRule(rule)
			if relevant {
				all = append(all, r)
			}
			return err
		})
	})
	return all, err
}

// each calls f with the elements of a collection, until the first error.
func (d *dispatch) each(f func(element *dispatch) error) error {
	v := d.get("_NewEnum")
	defer func() { _ = v.Clear() }() // releases the object
	unknown := v.ToIUnknown()
	if unknown == nil {
		return errors.Join(d.err, &Error{Call: "_NewEnum", Code: unspecified})
	}
	enum, err := unknown.IEnumVARIANT(ole.IID_IEnumVariant)
	if err != nil {
		return comError("IEnumVARIANT", err)
	}
	defer enum.Release()
	for {
		item, n, err := enum.Next(1)
		if n == 0 { // the end, which is S_FALSE, or an error
			if o, failed := errors.AsType[*ole.OleError](err); failed && int32(o.Code()) < 0 {
				return comError("IEnumVARIANT.Next", err)
			}
			return nil
		}
		if object := item.ToIDispatch(); object != nil {
			err = f(&dispatch{IDispatch: object})
		}
		_ = item.Clear() // releases the object
		if err != nil {
			return err
		}
	}
}

// readRule returns a rule, and false if it is not for inbound UDP. That its name cannot be read is an error: it could be
// ours, or one that blocks.
func readRule(rule *dispatch) (r FirewallRule, relevant bool, err error) {
	r.Name = rule.text("Name")
	if rule.err != nil {
		return r, false, rule.err
	}
	direction := rule.number("Direction")
	r.Protocol = rule.number("Protocol")
	if rule.err == nil && (direction != directionIn || r.Protocol != UDP && r.Protocol != AnyProtocol) {
		return r, false, nil
	}
	r.Enabled, r.Allow = rule.flag("Enabled"), rule.number("Action") == actionAllow
	r.Profiles = rule.number("Profiles")
	if r.Protocol == UDP { // a rule for any protocol has no ports
		r.Ports = rule.text("LocalPorts")
	}
	if rule.err != nil {
		return UnreadFirewallRule(r.Name), true, nil
	}
	r.Limited = isLimited(rule, r.Protocol)
	return r, true, nil
}

// isLimited reports whether a rule is limited to some programs, services, addresses or interfaces, as it is if they
// cannot be read.
func isLimited(rule *dispatch, protocol int) bool {
	interfaces := rule.get("Interfaces")
	limited := interfaces.VT != ole.VT_EMPTY && interfaces.VT != ole.VT_NULL
	_ = interfaces.Clear()
	for _, list := range []string{"LocalAddresses", "RemoteAddresses"} {
		limited = limited || !isAny(rule.text(list))
	}
	if protocol == UDP {
		limited = limited || !isAny(rule.text("RemotePorts"))
	}
	types := rule.text("InterfaceTypes")
	// The packets of an overlay are received by the kernel, whose program is System.
	program := rule.text("ApplicationName")
	return limited || rule.text("ServiceName") != "" || types != "" && !strings.EqualFold(types, "All") ||
		program != "" && !strings.EqualFold(program, "System") || rule.err != nil
}

// isAny reports whether a list of addresses or ports limits nothing.
func isAny(list string) bool { return list == "" || list == "*" }

// AddFirewallRule implements Firewall.
func (netFirewall) AddFirewallRule(r FirewallRule) error {
	return withRules(func(rules *dispatch) error {
		rule, err := create(clsidRule)
		if err != nil {
			return err
		}
		defer rule.Release()
		action := int32(0)
		if r.Allow {
			action = actionAllow
		}
		rule.put("Name", r.Name)
		rule.put("Grouping", "flanneld")
		rule.put("Description", "Accepts packets of the pod network from other nodes. flanneld prepare adds it, flanneld cleanup removes it.")
		rule.put("Protocol", int32(r.Protocol)) // before the ports, which only some protocols have
		if r.Protocol == UDP {
			rule.put("LocalPorts", r.Ports)
		}
		rule.put("Direction", int32(directionIn))
		rule.put("Profiles", int32(r.Profiles))
		rule.put("Action", action)
		rule.put("Enabled", r.Enabled)
		if rule.err != nil {
			return rule.err
		}
		_, err = rules.CallMethod("Add", rule.IDispatch)
		return comError("INetFwRules.Add", err)
	})
}

// RemoveFirewallRule implements Firewall.
func (netFirewall) RemoveFirewallRule(name string) error {
	return withRules(func(rules *dispatch) error {
		_, err := rules.CallMethod("Remove", name)
		if err = comError("INetFwRules.Remove", err); errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
}

// comError converts an error of COM to an *Error with its code; nil for nil. It returns an *Error as it is.
func comError(call string, err error) error {
	o, isCOM := errors.AsType[*ole.OleError](err)
	if !isCOM {
		return err
	}
	code := Code(o.Code())
	// The code of an exception (DISP_E_EXCEPTION) is in a record.
	if e, ok := errors.AsType[ole.EXCEPINFO](o.SubError()); ok && e.SCODE() != 0 {
		code = Code(e.SCODE())
	}
	return &Error{Call: call, Code: code, Detail: o.Description()}
}
