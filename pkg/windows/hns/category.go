package hns

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Category says how far Windows trusts a network; the profile of the Windows Firewall depends on it. The values are those
// of NLM_NETWORK_CATEGORY.
type Category int

// Categories of networks. Only Windows sets Domain: it does so when a domain controller has authenticated the machine.
const (
	Public Category = iota
	Private
	Domain
)

// String returns the name that Get-NetConnectionProfile prints.
func (c Category) String() string {
	switch c {
	case Public:
		return "Public"
	case Private:
		return "Private"
	case Domain:
		return "DomainAuthenticated"
	}
	return fmt.Sprintf("category %d", int(c))
}

// CategoryClient reads and sets categories by a Stack, for package hostconfig. Any goroutine may call it. No method takes
// longer than the limit: calls may hang, such as when the Network List Service is starting.
type CategoryClient struct {
	calls Stack
	limit time.Duration
	busy  sync.Mutex // locked during a call: one that hangs occupies a thread
}

// NewCategoryClient returns a client. A call that takes longer than the limit is abandoned; until it returns, others fail.
func NewCategoryClient(calls Stack, limit time.Duration) *CategoryClient {
	return &CategoryClient{calls: calls, limit: limit}
}

// Category is Stack.Category within the limit.
func (c *CategoryClient) Category(ctx context.Context, adapterGUID string) (Category, error) {
	return c.call(ctx, func() (Category, error) { return c.calls.Category(adapterGUID) })
}

// SetCategory is Stack.SetCategory within the limit.
func (c *CategoryClient) SetCategory(ctx context.Context, adapterGUID string, to Category) error {
	_, err := c.call(ctx, func() (Category, error) { return to, c.calls.SetCategory(adapterGUID, to) })
	return err
}

// call runs f in a goroutine, which holds busy until f returns, also after the limit. Meanwhile, other calls fail with
// ErrTimeout at once, and the Keeper of hostconfig tries again later.
func (c *CategoryClient) call(ctx context.Context, f func() (Category, error)) (Category, error) {
	if !c.busy.TryLock() {
		return 0, fmt.Errorf("%w: the Network List Service does not answer an earlier call", ErrTimeout)
	}
	return bounded(ctx, c.limit, func(context.Context) (Category, error) {
		defer c.busy.Unlock()
		return f()
	})
}
