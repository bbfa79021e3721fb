package kube

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The first list decides which of the entries that are in the kernel stay there, so it must not be an old one. A list at
// the version "0" comes from the memory of an API server, which may lag behind the store by minutes; a list at "" is
// true, but servers before Kubernetes 1.31 read all Nodes from etcd for it, once for each daemon that starts.
//
// So the store is asked where it stands, by a list of one Node: a small quorum read. Then all Nodes are listed at that
// version or a later one, from the server's memory. A server that lags waits for up to three seconds, and then says that
// it is not there yet. After some tries the list comes from the store all the same: nobody knows how long it would take.

// lagging is how often an API server may say that it is behind before the store is read past it.
const lagging = 3

// atLeast returns the version that the first list must have; "": it is to be read from the store.
func (s *follower) atLeast(ctx context.Context) (version string, err error) {
	if s.behind >= lagging {
		return "", nil
	}
	return s.m.storeVersion(ctx)
}

// storeVersion asks where the history of the store is now.
func (m *Manager) storeVersion(ctx context.Context) (string, error) {
	body, err := m.api.Get().Resource("nodes").SetHeader("Accept", protobuf).MaxRetries(0).Param("limit", "1").Stream(quiet(ctx))
	if err != nil {
		return "", err
	}
	defer body.Close() //nolint:errcheck // nothing is lost with it
	return parseList(body, m.o.Prefix, func(*node) {})
}

// isBehind reports whether an API server answered that it does not know a version yet.
func isBehind(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}
