package hns_test

import (
	"errors"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// By COM, the category of a network is that of the machine. The positions of the methods are those of the header with
// which the DLL was compiled.
func TestCategory(t *testing.T) {
	m := hnstest.NewFor(t)
	m.Plug(hns.Adapter{Name: "Ethernet 2", MTU: 1500, MAC: dataplane.MAC{0, 0x15, 0x5d, 1, 2, 4}, Up: true})
	wine.Play(t, m)
	stack, err := hns.OpenStack()
	if err != nil {
		t.Fatal(err)
	}
	guid := m.Admin().Adapter("Ethernet 2").GUID
	for _, want := range []hns.Category{hns.Domain, hns.Private, hns.Public} {
		if err := m.Admin().SetCategory("Ethernet 2", want); err != nil {
			t.Fatal(err)
		}
		if got, err := stack.Category(guid); err != nil || got != want {
			t.Errorf("the category is %s, %v; want %s", got, err, want)
		}
	}
	if err := stack.SetCategory(guid, hns.Private); err != nil {
		t.Error(err)
	}
	if first, second := m.Admin().Category("Ethernet"), m.Admin().Category("Ethernet 2"); first != hns.Public || second != hns.Private {
		t.Errorf("after Ethernet 2 was set: %s and %s", first, second)
	}
	m.Turn(func(k *hnstest.Knobs) { k.CategoryByPolicy = true })
	refused := (*hns.Error)(nil)
	if err := stack.SetCategory(guid, hns.Public); !errors.As(err, &refused) || refused.Code != hns.AccessDenied {
		t.Errorf("a group policy forbids it: %v", err)
	}
	if _, err := stack.Category("7804602a-559f-427d-9974-eeaf95aeb5c5"); !errors.Is(err, hns.ErrNotFound) {
		t.Errorf("no adapter: %v", err)
	}
	m.Fail(hnstest.Fault{Func: "INetwork.GetCategory", Code: hns.RPCServerUnavailable})
	if _, err := stack.Category(guid); !errors.Is(err, hns.ErrUnavailable) {
		t.Errorf("the service does not run: %v", err)
	}
}
