package wine

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The DLLs and Dial exchange frames with a Server over TCP:
//
//	u32 length of the rest | u32 number of fields | each field: u32 length, bytes      (little endian)
//
// The fields of a request are the program that makes it, the name of the call,
// and its arguments. The fields of an answer are the code (4 bytes), the
// result, and a third one: of HNS calls the error record, of IP Helper calls
// the offsets of pointers in the result (u32 each). Calls on one connection run
// one after another.
//
// When a program ends, its handles are closed. The end of a program is the end
// of a connection: the first connection of a DLL makes the call Program, whose
// result is the name of the program, and stays open until the process ends. The
// DLL makes every other call on a connection of its own, with that name. A
// connection whose requests have an empty name is a program itself.

const maxFrame = 64 << 20 // bytes

func readFrame(r io.Reader) ([][]byte, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("invalid frame of %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	var fields [][]byte
	for ; n > 0; n-- {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, io.ErrUnexpectedEOF
		}
		end := 4 + binary.LittleEndian.Uint32(b)
		fields = append(fields, b[4:end])
		b = b[end:]
	}
	return fields, nil
}

func writeFrame(w io.Writer, fields ...[]byte) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(len(fields)))
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	_, err := w.Write(b)
	return err
}
