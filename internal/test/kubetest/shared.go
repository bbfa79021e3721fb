package kubetest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// The start of a server takes seconds of a processor. Therefore tests of a package
// use servers one after the other:
//
//	Start (take) → the test has a server for itself → clean, give → the next Start
//
// The server of a test that fails, and one from which not all objects of its test can be
// removed, ends instead.

// maxServers is the number of shared servers that a package runs at the same time.
// Other tests wait for one of them. A test must not start many.
const maxServers = 4

// pool has the shared servers of a package. Parallel tests call its methods.
type pool struct {
	dir string // for their directories; empty without Main

	mu      sync.Mutex // guards the following
	changed sync.Cond  // idle or count has changed
	idle    []*Server  // that run and that no test has
	count   int        // servers that run, or that start, idle or not
}

var servers pool

// Main is for TestMain. It runs the tests and lets them use servers one after the
// other, except servers with options that change their arguments.
func Main(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "kubetest") // deleted below
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	servers.dir, servers.changed.L = dir, &servers.mu
	defer os.RemoveAll(dir)
	code = m.Run()
	for _, s := range servers.idle {
		s.Kill()
	}
	return code
}

// take returns an idle server with our manifest, or bare, or nil if the caller is to start
// one, which is counted already. It waits while maxServers are in use.
func (p *pool) take(bare bool) *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		i := slices.IndexFunc(p.idle, func(s *Server) bool { return s.bare == bare })
		switch {
		case i >= 0:
			s := p.idle[i]
			p.idle = slices.Delete(p.idle, i, i+1)
			return s
		case p.count < maxServers:
			p.count++
			return nil
		case len(p.idle) > 0: // of the other kind: end it, and let the caller start one in its place
			p.idle[0].remove()
			p.idle = p.idle[1:]
			return nil
		}
		p.changed.Wait()
	}
}

// give takes a server back from a test, or ends it if it is not clean.
func (p *pool) give(s *Server, clean bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if clean {
		p.idle = append(p.idle, s)
	} else {
		p.count--
		s.remove()
	}
	p.changed.Broadcast()
}

// remove ends the server and removes its directory.
func (s *Server) remove() {
	if s.proc != nil {
		s.Kill()
	}
	_ = os.RemoveAll(s.dir) // Main removes what is left
}

// use gives a shared server to a test, and takes it back when the test ends.
func (s *Server) use(t testing.TB) {
	s.t = t
	if s.proc != nil {
		s.proc = s.proc.For(t)
	}
	t.Cleanup(func() {
		clean := !t.Failed()
		if clean {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			if err := s.clean(ctx); err != nil {
				t.Log("kube-apiserver: no other test gets this one:", err)
				clean = false
			}
		}
		servers.give(s, clean)
	})
}

// object is the identity of an object in the API.
type object struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func (o object) String() string { return o.resource.Resource + " " + o.namespace + "/" + o.name }

// inventory has the UID and the resourceVersion of each object, as one text: another text
// means that the object was changed or replaced.
type inventory map[object]string

// ownKinds are the kinds of which kube-apiserver creates and changes objects at any time. No
// inventory has them.
var ownKinds = []string{"leases", "apiservices", "flowschemas", "prioritylevelconfigurations", "servicecidrs", "ipaddresses"}

// lacks returns an error that names an object which kube-apiserver makes soon after it is ready, and has not made yet.
func (all inventory) lacks() error {
	core := schema.GroupVersion{Version: "v1"}
	for _, o := range []object{
		{core.WithResource("namespaces"), "", metav1.NamespaceDefault},
		{core.WithResource("namespaces"), "", metav1.NamespaceSystem},
		{core.WithResource("namespaces"), "", metav1.NamespacePublic},
		{core.WithResource("namespaces"), "", "kube-node-lease"},
		{core.WithResource("configmaps"), metav1.NamespaceSystem, "extension-apiserver-authentication"},
		{core.WithResource("configmaps"), metav1.NamespaceSystem, "kube-apiserver-legacy-service-account-token-tracking"},
	} {
		if all[o] == "" {
			return fmt.Errorf("%v is not there yet", o)
		}
	}
	return nil
}

// inventory lists all objects that can be deleted, except for those of ownKinds.
func (s *Server) inventory(ctx context.Context) (inventory, error) {
	config := rest.CopyConfig(s.Config)
	config.WarningHandler = rest.NoWarnings{} // of deprecated resources
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := s.Client.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	all := inventory{}
	for _, g := range groups {
		version, err := schema.ParseGroupVersion(g.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range g.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") || slices.Contains(ownKinds, r.Name) {
				continue
			}
			resource := version.WithResource(r.Name)
			list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", r.Name, err)
			}
			for _, o := range list.Items {
				if o.Namespace == metav1.NamespaceDefault && o.Name == "kubernetes" {
					continue // the Service of kube-apiserver and its endpoints
				}
				all[object{resource, o.Namespace, o.Name}] = string(o.UID) + " " + o.ResourceVersion
			}
		}
	}
	return all, nil
}

// clean deletes what a test has created. It fails if that does not make the server what it was.
func (s *Server) clean(ctx context.Context) error {
	if err := os.RemoveAll(s.File("backup")); err != nil {
		return err
	}
	all, err := s.inventory(ctx)
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(s.Config)
	if err != nil {
		return err
	}
	now := int64(0) // seconds until an object is deleted
	for o := range all {
		if s.fresh[o] != "" || o.resource.Resource == "namespaces" {
			continue
		}
		if o.resource.Group == "admissionregistration.k8s.io" { // the next test would meet it
			return fmt.Errorf("it would enforce %v for a second after its deletion", o)
		}
		err := client.Resource(o.resource).Namespace(o.namespace).Delete(ctx, o.name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) { // events, for example, are resources of two groups
			return fmt.Errorf("delete %v: %w", o, err)
		}
	}
	for o := range all { // after what is in them
		if s.fresh[o] == "" && o.resource.Resource == "namespaces" {
			if err := s.deleteNamespace(ctx, o.name); err != nil {
				return fmt.Errorf("delete %v: %w", o, err)
			}
		}
	}
	left, err := s.inventory(ctx)
	if err != nil {
		return err
	}
	return s.fresh.compare(left)
}

// compare returns an error that names the objects that differ.
func (all inventory) compare(with inventory) error {
	var names []string
	for o := range all {
		if with[o] != all[o] {
			names = append(names, o.String())
		}
	}
	for o := range with {
		if all[o] == "" {
			names = append(names, o.String())
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("it was changed: %v", names)
	}
	return nil
}

// deleteNamespace deletes an empty namespace. The API server deletes one only when its
// finalizers are gone, which the namespace controller removes in a real cluster.
func (s *Server) deleteNamespace(ctx context.Context, name string) error {
	namespaces := s.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	n, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	n.Spec.Finalizers = nil
	_, err = namespaces.Finalize(ctx, n, metav1.UpdateOptions{})
	return err
}
