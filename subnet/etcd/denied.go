package etcd

import (
	"cmp"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// deniedError means that this node's etcd user lacks a permission that the
// daemon needs.
type deniedError struct {
	User string // "": the common name of the client certificate
	Need string // "read" or "readwrite"
	Key  string
	All  bool // for all keys that begin with Key
}

func (e *deniedError) Error() string {
	prefix := ""
	if e.All {
		prefix = "--prefix=true "
	}
	return fmt.Sprintf("permission denied: etcd user %q needs %s permission for %s; "+
		"grant it with: etcdctl role grant-permission ROLE %s%s %s",
		cmp.Or(e.User, "of the client certificate"), e.Need, e.Key, prefix, e.Need, e.Key)
}

// Refused implements subnet.Refusal.
func (e *deniedError) Refused() {}

// denied replaces etcd's "permission denied" by a deniedError, which names the
// permission; any other err, also nil, it returns as it is.
func (m *Manager) denied(err error, need, key string, all bool) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return &deniedError{User: m.user, Need: need, Key: key, All: all}
	}
	return err
}

// deniedClaim adds advice for a node that may write only the one key that is
// reserved for it, and tries to create another one because the reserved key
// does not have its address. The error is final: the caller logs it and calls
// Acquire again.
func (m *Manager) deniedClaim(err error, key, publicIP string) error {
	if denied, ok := errors.AsType[*deniedError](m.denied(err, "readwrite", key, false)); ok { // false: one key
		return final{fmt.Errorf("%w; if this user may write one reserved key only, let that key carry this node's PublicIP %s",
			denied, publicIP)}
	}
	return err
}
