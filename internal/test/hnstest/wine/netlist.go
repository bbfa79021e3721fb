package wine

import (
	"strconv"
	"strings"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// netList makes a call NetList, of the DLL of the Network List Manager. Its
// arguments are a method, the GUID of an adapter, and an argument:
//
//	connections              the adapters' GUIDs, separated by spaces
//	category <GUID>          the category as a number
//	set <GUID> <category>    nothing
func netList(m *hnstest.Machine, args [][]byte) (string, hns.Code) {
	if len(args) != 3 {
		return "", api.InvalidArg
	}
	method, guid := string(args[0]), string(args[1])
	switch method {
	case "connections":
		var connected []string
		for _, a := range m.Admin().Adapters() {
			if a.Up && !a.Loopback {
				connected = append(connected, a.GUID)
			}
		}
		return strings.Join(connected, " "), 0
	case "category":
		c, err := m.Category(guid)
		return strconv.Itoa(int(c)), code(err)
	case "set":
		c, err := strconv.Atoi(string(args[2]))
		if err != nil {
			return "", api.InvalidArg
		}
		return "", code(m.SetCategory(guid, hns.Category(c)))
	}
	return "", api.InvalidArg
}
