package hns_test

import (
	"errors"
	"strings"
	"testing"

	"flannel/pkg/windows/hns"
)

// Who uses an endpoint: a namespace, which has its ID and it has the namespace's; a container; nobody.
func TestNamespaces(t *testing.T) {
	m, c := open(t)
	ctx := t.Context()
	n, err := c.CreateNetwork(ctx, overlay("flannel.4096"))
	if err != nil {
		t.Fatal(err)
	}
	if all, err := c.Namespaces(ctx); err != nil || len(all) != 0 {
		t.Errorf("at first: %v, %v", all, err)
	}
	id := m.Admin().AddNamespace()
	if err := errors.Join(m.Admin().AddEndpoint("flannel.4096", "pod", id, ip("10.244.5.7")), m.Admin().AddEndpoint("flannel.4096", "bare", "", ip("10.244.5.8"))); err != nil {
		t.Fatal(err)
	}
	pod, err := c.EndpointsNamed(ctx, "pod")
	if err != nil || len(pod) != 1 || !strings.EqualFold(pod[0].Namespace, id) {
		t.Fatalf("%+v, %v", pod, err)
	}
	bare, err := c.EndpointsNamed(ctx, "bare")
	if err != nil || len(bare) != 1 || bare[0].Namespace != "" {
		t.Fatalf("%+v, %v", bare, err)
	}
	all, err := c.Namespaces(ctx)
	if err != nil || len(all) != 1 || !strings.EqualFold(all[0].ID, id) || len(all[0].Endpoints) != 1 || !strings.EqualFold(all[0].Endpoints[0], pod[0].ID) {
		t.Errorf("%+v, %v", all, err)
	}
	if ids, err := c.EndpointIDs(ctx, n.ID); err != nil || len(ids) != 2 {
		t.Errorf("%v, %v", ids, err)
	}
	if err := m.Admin().SetContainers("bare", "c1", "c2"); err != nil {
		t.Fatal(err)
	}
	for e, want := range map[string]hns.Use{pod[0].ID: {Attached: true}, bare[0].ID: {Containers: []string{"c1", "c2"}}} {
		if use, err := c.EndpointUse(ctx, e); err != nil || use.Attached != want.Attached || len(use.Containers) != len(want.Containers) {
			t.Errorf("%+v, %v, want %+v", use, err, want)
		}
	}
	m.Admin().DeleteNamespace(id)
	if all, err := c.Namespaces(ctx); err != nil || len(all) != 0 {
		t.Errorf("after it was deleted: %+v, %v", all, err)
	}
}
