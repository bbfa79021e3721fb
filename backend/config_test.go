package backend_test

import (
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
)

// A backend of flannel that this program does not have is refused with the reason, and with the ones to use instead.
func TestRefusedBackends(t *testing.T) {
	for name, reason := range map[string]string{"tencent-vpc": "Tencent", "tencent": `"tencent"`} {
		_, maker, _, err := backend.ParseConfig("linux", []byte(`{"Network": "10.5.0.0/16", "Backend": {"Type": "`+name+`"}}`))
		if err == nil || maker != nil || !logtest.Names(err.Error(), "Backend.Type:", reason, "vxlan,") {
			t.Errorf("%s gives %v", name, err)
		}
		if _, instead, _ := strings.Cut(err.Error(), ";"); strings.Contains(instead, name) {
			t.Errorf("%s is offered: %s", name, instead)
		}
	}
}

// ipip has no IPv6, and needs Linux.
func TestIPIPAlone(t *testing.T) {
	dual := []byte(`{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::/56", "Backend": {"Type": "ipip"}}`)
	config, _, warnings, err := backend.ParseConfig("linux", dual)
	if err != nil || config.V6.On() || len(warnings) != 1 || !logtest.Names(warnings[0], "EnableIPv6:", "ipip", "IPv4") {
		t.Errorf("dual-stack gives %v, IPv6 %t, %q", err, config.V6.On(), warnings)
	}
	if _, _, _, err := backend.ParseConfig("windows", dual); err == nil || !logtest.Names(err.Error(), "Backend.Type:", "ipip", "Linux", "vxlan") {
		t.Errorf("on Windows: %v", err)
	}
}

// Windows does not support IPv6 on an overlay: in a dual-stack cluster, its nodes use only IPv4, with a warning.
func TestFamiliesOfWindows(t *testing.T) {
	dual := `{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::/56", "Backend": {"Type": "vxlan", "VNI": 4096}}`
	for _, os := range []string{"linux", "windows"} {
		config, maker, warnings, err := backend.ParseConfig(os, []byte(dual))
		if err != nil || maker == nil || !config.V4.On() {
			t.Errorf("%s: %v, maker %t, IPv4 %t", os, err, maker != nil, config.V4.On())
		}
		on, warned := config.V6.On(), strings.Contains(strings.Join(warnings, "\n"), "EnableIPv6")
		if on != (os == "linux") || warned == on {
			t.Errorf("%s: IPv6 is on: %t, warnings %q", os, on, warnings)
		}
	}
	gateways := strings.Replace(dual, `"vxlan", "VNI": 4096`, `"host-gw"`, 1)
	if config, _, warnings, err := backend.ParseConfig("windows", []byte(gateways)); err != nil || !config.V6.On() || len(warnings) > 0 {
		t.Errorf("host-gw on Windows: %v, IPv6 is on: %t, warnings %q", err, config.V6.On(), warnings)
	}
	one := `{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::/56", "Backend": {"Type": "udp"}}`
	if config, _, warnings, err := backend.ParseConfig("linux", []byte(one)); err != nil || config.V6.On() || len(warnings) != 1 || !logtest.Names(warnings[0], "EnableIPv6", "udp", "linux") {
		t.Errorf("udp with both families: %v, IPv6 is on: %t, warnings %q", err, config.V6.On(), warnings)
	}
	only6 := `{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::/56", "Backend": {"Type": "vxlan", "VNI": 4096}}`
	if _, _, _, err := backend.ParseConfig("windows", []byte(only6)); err == nil || !logtest.Names(err.Error(), "IPv4", "host-gw") {
		t.Errorf("IPv6 alone on Windows gives %v", err)
	}
}

// As with flannel, a configuration that names no backend means udp, which Windows does not have.
func TestNoBackendType(t *testing.T) {
	for _, raw := range []string{`{"Network": "10.5.0.0/16"}`, `{"Network": "10.5.0.0/16", "Backend": {}}`, `{"Network": "10.5.0.0/16", "Backend": {"Type": "", "Port": 9000}}`} {
		config, maker, warnings, err := backend.ParseConfig("linux", []byte(raw))
		if err != nil || maker == nil || config.Backend != "udp" || len(warnings) != 1 || !logtest.Names(warnings[0], "Backend.Type", "udp", "vxlan", "host-gw") {
			t.Errorf("%s: backend %q, warnings %q, %v", raw, config.Backend, warnings, err)
		}
		if _, _, _, err := backend.ParseConfig("windows", []byte(raw)); err == nil || !logtest.Names(err.Error(), "Backend.Type", "udp", "Windows", "vxlan", "host-gw") {
			t.Errorf("%s on Windows: %v", raw, err)
		}
	}
}
