package kube

import (
	"context"
)

// The first list must not be stale: the daemon deletes the routes to nodes that are missing in it. A list at
// resourceVersion "0" comes from the memory of an API server, which may lag behind the store by minutes. A list at "" is
// consistent, but before Kubernetes 1.31 it reads all Nodes from etcd, once for each daemon that starts.
//
// So listFirst asks for the store's version by a list of one Node, a small quorum read of etcd. Then it lists all Nodes
// at that version or a later one, from the API server's memory. An API server that lags waits for three seconds and then
// fails the request. After lagTries of these, the list is read from etcd, because the lag may last for any time.

// lagTries is how often the API server may be behind the store before the list is read from etcd.
const lagTries = 3

// listFirst reads all Nodes for the first time, and calls each with them; version is the list's position. follow pauses
// after an error, and then calls it again.
func (s *follower) listFirst(ctx context.Context, each func(*storedNode)) (version string, err error) {
	at := "" // from etcd
	if s.lagged < lagTries {
		if at, err = s.m.api.StoreVersion(ctx); err != nil {
			return "", err
		}
	}
	version, err = s.m.api.Nodes(ctx, "", at, each)
	if isVersionTooLarge(err) {
		s.lagged++
	}
	return version, err
}
