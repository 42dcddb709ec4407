// Package backup reads and writes backup files. A file contains all data of a cluster, group by group. Its form depends
// neither on the database engine nor on the log. The package owns the file format, its checksums, and the errors for
// files that are damaged, truncated, or written by another program or a newer version.
//
// The package never uses groups, state machines or the network. It has no goroutines. Only one goroutine at a time may
// use a Writer or a Reader.
//
// A file consists of a magic number, a version and frames:
//
//	file    "QRBACKUP" version(2) frame*
//	frame   type(1) length(4) payload checksum(4)
//
// The checksum of a frame is the CRC-32C of its type, length and payload. The first frame is the header, and the last
// one is the trailer. Between them are the groups in ascending order. Each group consists of a begin frame, records in
// the order of their keys, results of requests with a client id, and an end frame.
//
// Numbers in frames are big-endian. Numbers in records are uvarints. Header, begin, end and trailer are JSON, so that
// later versions can add fields. The end frame of a group contains the counts of the group, and the length and a CRC-64
// of its other frames. The trailer contains the counts of the file, and the length and a CRC-64 of everything before
// the trailer. Nothing follows the trailer.
package backup

import (
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Version is the version of the file format. This build writes and reads only this version.
const Version = 1

const (
	magic     = "QRBACKUP"
	headSize  = len(magic) + 2
	frameHead = 1 + 4

	// maxFrame bounds a frame: the largest possible record and some overhead.
	maxFrame = 80 << 20

	// PartSize is the approximate size in bytes of a frame of records. A restore writes each frame to the log as one
	// entry, or as several entries if the frame exceeds the maximum size of an entry.
	PartSize = 512 << 10
)

// The types of frames.
const (
	frameHeader     = 1
	frameBegin      = 2
	frameRecords    = 3
	frameRemembered = 4
	frameEnd        = 5
	frameTrailer    = 6
)

// Header describes a backup file.
type Header struct {
	Created    time.Time `json:"created"`
	Node       string    `json:"node"`      // the node that wrote it
	Program    string    `json:"program"`   // version of the program
	Cluster    string    `json:"cluster"`   // name of the cluster
	ClusterID  string    `json:"clusterId"` // id of the cluster
	Epoch      uint64    `json:"epoch,omitempty"`
	Partitions uint32    `json:"partitions"`
	Formats    Formats   `json:"formats"`
	Groups     []Group   `json:"groups"` // one for each partition, in order
}

// Formats are the format versions of the backed up data.
type Formats struct {
	Command uint32 `json:"command"` // log entries
	File    uint32 `json:"file"`    // this file
}

// Group describes the backed up state of one group.
type Group struct {
	ID       uint32 `json:"id"`
	Index    uint64 `json:"index"`    // the leader's commit index; the state is at least as new
	Term     uint64 `json:"term"`     // the term in which a majority has confirmed that leader
	Applied  uint64 `json:"applied"`  // index of the newest entry in the state
	Revision uint64 `json:"revision"` // counter from which ETags are made
	Clock    uint64 `json:"clock"`    // cluster time, Unix milliseconds
}

// Record is one key with its value.
type Record struct {
	Store, Key  string
	Value       []byte
	ContentType string
	ExpireAt    uint64 // cluster time, Unix milliseconds; 0 = never
}

// Remembered is the stored result of a request with a ClientID, which the client has chosen. If the client retries the
// request with the same ClientID, it gets this result.
type Remembered struct {
	Key         string
	ExpireAt    uint64
	Fingerprint uint64
	Result      []byte
}

// Totals are the counts of one group, or of the whole file.
type Totals struct {
	Keys       uint64 `json:"keys"`
	Remembered uint64 `json:"remembered"`
	Bytes      uint64 `json:"bytes"` // in the file, without the end frame of the group or the trailer of the file
}

func (t *Totals) add(o Totals) {
	t.Keys += o.Keys
	t.Remembered += o.Remembered
	t.Bytes += o.Bytes
}

// begin is the content of the begin frame of a group.
type begin struct {
	ID uint32 `json:"id"`
}

// end is the content of the end frame of a group, or of the trailer of the file.
type end struct {
	Totals
	Sum string `json:"crc64"`
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	ecma       = crc64.MakeTable(crc64.ECMA)
)

func sumText(sum uint64) string { return fmt.Sprintf("%016x", sum) }

// validate returns fault.Corrupt if the header does not list one group for each partition, in ascending order.
func (h *Header) validate() error {
	if h.Partitions == 0 || len(h.Groups) != int(h.Partitions) {
		return damaged("header", fmt.Sprintf("it has %d groups for %d partitions", len(h.Groups), h.Partitions))
	}
	for i, g := range h.Groups {
		if g.ID != uint32(i) {
			return damaged("header", "its groups are out of order")
		}
	}
	return nil
}

func damaged(part, why string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "backup.Read",
		Msg:  fmt.Sprintf("the backup is damaged at its %s: %s", part, why),
		Hint: "use another copy of the file; nothing was changed"}
}

func torn(part string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "backup.Read", Msg: "the backup is truncated at its " + part,
		Hint: "it was not written or copied completely: use another copy; nothing was changed"}
}
