package etcd

import (
	"cmp"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// DeniedError says that etcd's authorization refuses this node's user what the daemon needs.
type DeniedError struct {
	User string // "" with a client certificate, whose common name it is
	Need string // "read" or "readwrite"
	Key  string
	All  bool // all keys that begin with Key, too
}

func (e *DeniedError) Error() string {
	prefix := ""
	if e.All {
		prefix = "--prefix=true "
	}
	return fmt.Sprintf("permission denied: etcd user %q needs %s permission for %s; "+
		"grant it with: etcdctl role grant-permission ROLE %s%s %s",
		cmp.Or(e.User, "of the client certificate"), e.Need, e.Key, prefix, e.Need, e.Key)
}

// Refused implements patience.Refusal.
func (e *DeniedError) Refused() {}

// denied puts what is missing in the place of etcd's "permission denied".
func (m *Manager) denied(err error, need, key string, all bool) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return &DeniedError{User: m.user, Need: need, Key: key, All: all}
	}
	return err
}

// deniedClaim is for a node without the permission to take a free subnet: it may write a key that is reserved for it, and
// has not found it. Waiting in here does not help: the caller tells the reason and tries again from the start.
func (m *Manager) deniedClaim(err error, key, publicIP string) error {
	var denied *DeniedError
	if errors.As(m.denied(err, "readwrite", key, false), &denied) {
		return final{fmt.Errorf("%w; if this user may write one reserved key only, let that key carry this node's PublicIP %s",
			denied, publicIP)}
	}
	return err
}
