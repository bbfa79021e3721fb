package hns_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows/registry"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// Without SetInterfaceDnsSettings, as before build 19041, DNS settings are in the registry.
func TestDNSByRegistry(t *testing.T) {
	m, s, index := openStack(t)
	m.Fail(hnstest.Fault{Func: "SetInterfaceDnsSettings", Code: hns.NoSuchFunction})
	if err := s.SetDNS(index, []netip.Addr{ip("9.9.9.9"), ip("fd00::53"), ip("8.8.8.8")}); err != nil {
		t.Fatal(err)
	}
	guid := "{" + m.Admin().Adapter("Büro 2").GUID + "}"
	for stack, want := range map[string]string{"Tcpip": "9.9.9.9,8.8.8.8", "Tcpip6": "fd00::53"} {
		key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+stack+`\Parameters\Interfaces\`+strings.ToUpper(guid), registry.QUERY_VALUE)
		if err != nil {
			t.Fatal(stack, err)
		}
		if got, kind, err := key.GetStringValue("NameServer"); got != want || kind != registry.SZ || err != nil {
			t.Errorf("%s: %q, %v", stack, got, err)
		}
		if err := key.Close(); err != nil {
			t.Error(err)
		}
	}
	if got, err := s.ManualDNS(index); err != nil || !slices.Equal(got, []netip.Addr{ip("9.9.9.9"), ip("8.8.8.8"), ip("fd00::53")}) {
		t.Errorf("read back %v, %v", got, err)
	}
	for _, on := range []bool{true, false} {
		if err := s.SetDNSRegistration(index, on); err != nil {
			t.Fatal(err)
		}
		key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces\`+guid, registry.QUERY_VALUE)
		if err != nil {
			t.Fatal(err)
		}
		enabled, _, err1 := key.GetIntegerValue("RegistrationEnabled")
		disabled, _, err2 := key.GetIntegerValue("DisableDynamicUpdate")
		if err1 != nil || err2 != nil || enabled == disabled || (enabled == 1) != on {
			t.Errorf("%t: %d, %d, %v, %v", on, enabled, disabled, err1, err2)
		}
		if err := key.Close(); err != nil {
			t.Error(err)
		}
	}
}
