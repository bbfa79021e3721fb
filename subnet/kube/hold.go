package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"flannel/subnet"
	"flannel/subnet/kube/format"
	"flannel/subnet/patience"
)

// Hold keeps our annotations; see subnet.Manager.
func (m *Manager) Hold(ctx context.Context) error {
	m.mu.Lock()
	c := m.claim
	m.mu.Unlock()
	if c == nil {
		return errors.New("hold: no subnet was acquired")
	}
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.holding = false
	}()
	ctx, cancel := context.WithCancel(ctx)
	mended := make(chan struct{})
	go func() {
		defer close(mended)
		m.mendForever(ctx, c)
	}()
	err := m.follow(ctx, feed{activity: "watch this node's Node", only: m.ownName(), to: func(_ context.Context, changes []change) error {
		return m.look(c, changes[len(changes)-1])
	}})
	cancel()
	<-mended
	return err
}

// look judges what our Node is now.
func (m *Manager) look(c *claim, is change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := c.now
	if is.replaced {
		c.now = nil // what is older is news
	}
	if is.node == nil {
		if c.see(nil); was != nil {
			m.log.Warn("this node's Node was deleted: the network stays as it is until it is there again", "cause", causeNoNode, "node", is.name)
		}
		return nil
	}
	if len(is.node.CIDRs) == 0 {
		if was == nil || was.UID != is.node.UID {
			m.log.Warn("this node's Node was made anew and has no podCIDR yet: the network stays as it is", "cause", causeNoPodCIDR, "node", is.name)
		}
		c.see(is.node)
		return nil
	}
	v4, v6, err := format.Subnets(is.node.CIDRs)
	if err != nil || c.v4.IsValid() && v4 != c.v4 || c.v6.IsValid() && v6 != c.v6 {
		return fmt.Errorf("node %s has podCIDR %s now: %w", is.name, strings.Join(is.node.CIDRs, ", "), subnet.ErrMoved)
	}
	c.see(is.node)
	m.obey(c.now.Notes)
	switch {
	case was == nil || was.UID != is.node.UID:
		m.log.Info("this node's Node was made anew, with the same podCIDR", "node", is.name)
		c.quarrel = patience.Quarrel{}
		m.teller.known()
	case was.Notes.Operators() != is.node.Notes.Operators():
		m.log.Info("annotations of an operator changed", "node", is.name)
		c.quarrel = patience.Quarrel{}
	}
	token(m.mend)
	return nil
}

// mendForever puts our annotations back when another hand was at them.
func (m *Manager) mendForever(ctx context.Context, c *claim) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.mend:
		}
		m.mu.Lock()
		raw, changes := m.difference(c)
		if raw == nil || !c.settled { // else whoever publishes is about to write them
			m.mu.Unlock()
			continue
		}
		wait := c.quarrel.Next(time.Now())
		rounds := c.quarrel.Rounds
		m.mu.Unlock()
		slices.Sort(changes)
		switch rounds {
		case 1:
			m.log.Warn("our annotations are not what they shall be: putting them right", "cause", causeOverwritten, "annotations", strings.Join(changes, " "))
		case 3:
			m.log.Warn("our annotations are changed again and again: is there another flanneld or flannel with this node's name?",
				"cause", causeConflict, "annotations", strings.Join(changes, " "))
		}
		patience.Pause(ctx, wait)
		if err := m.retry(ctx, "put our annotations right", func(ctx context.Context) error { return m.settle(ctx, c) }); err != nil && ctx.Err() == nil {
			m.log.Warn("cannot put our annotations right", "error", err)
		}
	}
}
