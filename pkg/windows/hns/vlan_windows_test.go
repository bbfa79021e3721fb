package hns_test

import (
	"testing"

	"golang.org/x/sys/windows/registry"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// The driver's VLAN is a number or a text in the registry.
func TestVLAN(t *testing.T) {
	m, s, _ := openStack(t)
	guid := m.Admin().Adapter("Büro 2").GUID
	if got := s.VLAN(guid); got != 0 {
		t.Errorf("no key: %d", got)
	}
	const path = `SYSTEM\CurrentControlSet\Control\Class\{4d36e972-e325-11ce-bfc1-08002be10318}\0042`
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, path, registry.SET_VALUE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registry.DeleteKey(registry.LOCAL_MACHINE, path); err != nil {
			t.Error(err)
		}
	})
	defer key.Close()
	if err := key.SetStringValue("NetCfgInstanceId", "{"+guid+"}"); err != nil {
		t.Fatal(err)
	}
	if got := s.VLAN(guid); got != 0 {
		t.Errorf("no VLAN: %d", got)
	}
	if err := key.SetStringValue("VlanID", "42"); err != nil || s.VLAN(guid) != 42 {
		t.Errorf("text: %d, %v", s.VLAN(guid), err)
	}
	if err := key.SetDWordValue("VlanID", 43); err != nil || s.VLAN(guid) != 43 {
		t.Errorf("number: %d, %v", s.VLAN(guid), err)
	}
}

// The kind of an adapter follows from the type of its interface, and for a team from the driver.
func TestKinds(t *testing.T) {
	m, s, index := openStack(t)
	for _, want := range []hns.Kind{hns.Ethernet, hns.WiFi, hns.Tunnel, hns.Team} {
		m.Turn(func(k *hnstest.Knobs) { k.AdapterKind = want })
		adapters, err := s.Adapters()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range adapters {
			if a.Index == index && a.Kind != want {
				t.Errorf("kind %d, want %d", a.Kind, want)
			}
		}
	}
}
