package firewall

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// toldRule is a rule as the kernel tells it.
func toldRule(t testing.TB, exprs ...expr.Any) []byte {
	t.Helper()
	e := netlink.NewAttributeEncoder()
	e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(list *netlink.AttributeEncoder) error {
		for _, x := range exprs {
			raw, err := expr.Marshal(byte(nftables.TableFamilyIPv4), x)
			if err != nil {
				return err
			}
			list.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, raw)
		}
		return nil
	})
	e.Bytes(unix.NFTA_RULE_USERDATA, []byte("\x00\x0eflanneld masq\x00"))
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return append(make([]byte, 4), raw...)
}

// FuzzRule: other programs put rules of any kind into our chains, and a newer kernel has expressions that we do not know.
func FuzzRule(f *testing.F) {
	counter := &expr.Counter{}
	f.Add(toldRule(f, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{0, 0, 64, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0, 64, 0}}, counter, &expr.Verdict{Kind: expr.VerdictReturn}))
	f.Add(toldRule(f, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, counter, &expr.Verdict{Kind: expr.VerdictJump, Chain: "x"}))
	f.Add(toldRule(f, &expr.Masq{FullyRandom: true}, &expr.Log{}, &expr.Limit{}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := parseRule(nftables.TableFamilyIPv4, data); err == nil {
			_ = nftRuleLine(r.exprs, r.user)
		}
	})
}

// An immediate that loads a value, which another expression uses, is not taken for the verdict of that number.
func TestValueIsNoVerdict(t *testing.T) {
	r, err := parseRule(nftables.TableFamilyIPv4, toldRule(t, &expr.Immediate{Register: 1, Data: make([]byte, 4)}, &expr.Counter{}))
	if err != nil || r.blocks || !r.conditional {
		t.Errorf("blocks: %t, conditional: %t, %v", r.blocks, r.conditional, err)
	}
}

// A message that is cut off is an error, and not a rule or chain with other content.
func TestCutOff(t *testing.T) {
	rule := toldRule(t, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictReturn})
	exprs := len(rule) - len(toldRule(t)) // they come before the userdata
	for _, size := range []int{0, 4, 8, 4 + exprs} {
		if r, err := parseRule(nftables.TableFamilyIPv4, rule[:size]); !errors.Is(err, rtnetlink.ErrShort) {
			t.Errorf("%d bytes of a rule: %+v, %v", size, r, err)
		}
	}
	chain := rtnetlink.Message(make([]byte, 4)).Attr(unix.NFTA_CHAIN_NAME, []byte("forward\x00")).Attr(unix.NFTA_CHAIN_USE, make([]byte, 4))
	if c, err := parseChain(chain); err != nil || c.Name != "forward" {
		t.Errorf("a chain: %+v, %v", c, err)
	}
	if c, err := parseChain(chain[:len(chain)-1]); !errors.Is(err, rtnetlink.ErrShort) {
		t.Errorf("a chain that is cut off: %+v, %v", c, err)
	}
}

// FuzzLegacyTable: a program for another architecture may get another layout than expected.
func FuzzLegacyTable(f *testing.F) {
	info := make([]byte, infoSize)
	info[nameSize] = 1 << 2 // FORWARD, which begins at 0
	entry := make([]byte, layout4.size+targetSize+4)
	entry[layout4.next-2], entry[layout4.next] = byte(layout4.size), byte(len(entry))
	f.Add(info, append(append(bytes.Clone(entry), entry...), entry...))
	f.Fuzz(func(t *testing.T, info, entries []byte) {
		if len(info) < infoSize {
			return
		}
		for _, l := range []layout{layout4, layout6} {
			if table, err := l.parse(info, entries); err == nil {
				table.rules("")
			}
		}
	})
}
