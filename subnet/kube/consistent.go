package kube

import (
	"context"

	"flannel/subnet/kube/client"
	"flannel/subnet/kube/format"
)

// The first list decides which of the entries that are in the kernel stay there, so it must not be an old one. A list at
// the version "0" comes from the memory of an API server, which may lag behind the store by minutes; a list at "" is
// true, but servers before Kubernetes 1.31 read all Nodes from etcd for it, once for each daemon that starts.
//
// So the store is asked where it stands, by a list of one Node: a small quorum read. Then all Nodes are listed at that
// version or a later one, from the server's memory. A server that lags waits for up to three seconds, and then says that
// it is not there yet. After some tries the list comes from the store all the same: nobody knows how long it would take.

// lagTries is how often an API server may say that it is behind before the store is read past it.
const lagTries = 3

// listFirst reads all Nodes for the first time.
func (s *follower) listFirst(ctx context.Context, each func(*format.Node)) (version string, err error) {
	at := ""
	if s.lagged < lagTries {
		if at, err = s.m.api.StoreVersion(ctx); err != nil {
			return "", err
		}
	}
	version, err = s.m.api.Nodes(ctx, "", at, each)
	if client.IsVersionTooLarge(err) {
		s.lagged++
	}
	return version, err
}
