package rtnetlink

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TablesGeneration returns a number that every transaction of nf_tables in the network namespace of the
// calling thread changes, a moment before others see the change; 0: unknown. Ask for the number before
// reading. Read again after a notification, even if the number is the same.
func TablesGeneration() uint32 {
	const tables = unix.NFNL_SUBSYS_NFTABLES << 8
	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg; the answer begins with one, too
	request := nl.NewNetlinkRequest(tables|unix.NFT_MSG_GETGEN, 0)
	request.AddRawData(header)
	answers, err := request.Execute(unix.NETLINK_NETFILTER, tables|unix.NFT_MSG_NEWGEN)
	if err != nil || len(answers) == 0 || len(answers[0]) < len(header) {
		return 0
	}
	// nf_tables answers in network byte order, and Number reads the host's. The callers only compare the result.
	return Number(Attr(answers[0][len(header):], unix.NFTA_GEN_ID))
}
