package firewall

import (
	"bytes"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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
		r := parseRule(nftables.TableFamilyIPv4, data)
		_ = nftRuleLine(r.exprs, r.user)
	})
}

// An immediate that loads a value, which another expression uses, is not taken for the verdict of that number.
func TestValueIsNoVerdict(t *testing.T) {
	r := parseRule(nftables.TableFamilyIPv4, toldRule(t, &expr.Immediate{Register: 1, Data: make([]byte, 4)}, &expr.Counter{}))
	if r.blocks || !r.conditional {
		t.Errorf("blocks: %t, conditional: %t", r.blocks, r.conditional)
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
