package command_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

func TestEncodeRequest_MeasuresExactly(t *testing.T) {
	for name, b := range samples() {
		size := command.HeaderSize
		for i := range b.Requests {
			appended, err := command.AppendRequest(nil, &b.Requests[i])
			if err != nil {
				t.Fatal(err)
			}
			got, err := command.EncodeRequest(&b.Requests[i], len(appended))
			if err != nil || !bytes.Equal(got, appended) || cap(got) != len(got) {
				t.Errorf("%s: encoded %x with room for %d bytes, AppendRequest wrote %x: %v", name, got, cap(got),
					appended, err)
			}
			if got, err := command.EncodeRequest(&b.Requests[i], len(appended)-1); !fault.Is(err, fault.TooLarge) {
				t.Errorf("%s: a limit of one byte less gave %d bytes and the error %v", name, len(got), err)
			}
			size += len(appended)
		}
		whole, err := command.Append(nil, &b)
		if err != nil {
			t.Fatal(err)
		}
		if len(whole) != size {
			t.Errorf("%s: a batch of %d bytes, its parts have %d", name, len(whole), size)
		}
	}
}

func TestAppendRequest_OneByOneMakesSameBatch(t *testing.T) {
	b := samples()["several"]
	var parts []byte
	for i := range b.Requests {
		var err error
		if parts, err = command.AppendRequest(parts, &b.Requests[i]); err != nil {
			t.Fatal(err)
		}
	}
	joined := append(command.AppendHeader(nil, command.First, b.Stamp, len(b.Requests)), parts...)
	whole, err := command.Append(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(joined, whole) {
		t.Errorf("joined\n%x, whole\n%x", joined, whole)
	}
}

func TestDecode_ValuesAliasInput(t *testing.T) {
	b := samples()["write_set"]
	data, err := command.Append(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	d, err := command.DecodeUpTo(255, data)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, b.Requests[0].Ops[0].Value)
	data[at] = '['
	if got := d.Requests[0].Ops[0].Value[0]; got != '[' {
		t.Errorf("the value was copied: it still starts with %q", got)
	}
}

func TestDecode_RefusesNewerVersion(t *testing.T) {
	b := samples()["format"]
	data, err := command.Append(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := command.DecodeUpTo(2, data); err != nil {
		t.Error(err)
	}
	for _, v := range []byte{command.Version + 1, 255} {
		data[1] = v
		_, err := command.Decode(data)
		if !fault.Is(err, fault.Unimplemented) {
			t.Errorf("version %d: %v, want %s", v, err, fault.Unimplemented)
		}
		if _, err = command.Decode(data[:2]); !fault.Is(err, fault.Unimplemented) {
			t.Errorf("version %d, cut: %v, want %s", v, err, fault.Unimplemented)
		}
	}
}

// An older build may not know a new version. So Append uses the lowest version that can represent a batch.
func TestAppend_UsesLowestVersion(t *testing.T) {
	for name, b := range samples() {
		want := byte(command.First)
		if name == "format" {
			want = 2 // the version that the request allows
		}
		data, err := command.Append(nil, &b)
		if err != nil {
			t.Fatal(err)
		}
		if got := command.VersionOf(data); got != want {
			t.Errorf("%s has version %d, want %d", name, got, want)
		}
		for i := range b.Requests {
			one, err := command.AppendRequest(nil, &b.Requests[i])
			if err != nil {
				t.Fatal(err)
			}
			if got := command.Needs(one); got > want || len(b.Requests) == 1 && got != want {
				t.Errorf("request %d of %s needs version %d, the batch %d", i, name, got, want)
			}
		}
	}
	if v := command.VersionOf([]byte{'q', 2}); v != 0 {
		t.Errorf("bytes that are no batch have version %d", v)
	}
}

func TestDecode_TruncatedOrExtendedIsCorrupt(t *testing.T) {
	for name, b := range samples() {
		data, err := command.Append(nil, &b)
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(data) {
			if _, err := command.DecodeUpTo(255, data[:n:n]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s truncated to %d of %d bytes: %v, want %s", name, n, len(data), err, fault.Corrupt)
			}
		}
		if _, err := command.DecodeUpTo(255, append(data, 0)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s with a trailing byte: %v, want %s", name, err, fault.Corrupt)
		}
	}
}

func TestDecode_InvalidFormsAreCorrupt(t *testing.T) {
	header := command.AppendHeader(nil, command.First, 1, 1)
	request := func(body ...byte) []byte {
		return append(binary.AppendUvarint(bytes.Clone(header), uint64(len(body))), body...)
	}
	text := "\x01s"
	cases := map[string][]byte{
		"nothing":                    nil,
		"other magic":                append([]byte{'q', 1}, header[2:]...),
		"version zero":               append([]byte{'Q', 0}, header[2:]...),
		"kind zero":                  request(0, 0),
		"unknown kind":               request(8, 0),
		"format in an older one":     request(6, 0, 2),
		"version above its requests": append([]byte{'Q', 2}, request(4, 0)[2:]...),
		"step zero of a restore":     request(5, 0, 0, 1, 0, 0),
		"unknown step of a restore":  request(5, 0, 5, 1, 0, 0),
		"restore without an id":      request(5, 0, 1, 0, 0, 0),
		"begin with a part":          request(5, 0, 1, 1, 1, 0),
		"commit with a revision":     request(5, 0, 3, 1, 0, 1),
		"chunk without its data":     request(5, 0, 2, 1, 0, 0),
		"restore with a request id":  request(5, 1, 1, 1, 0, 1, 1, 0, 0),
		"restored delete":            request([]byte("\x05\x00\x02\x01\x00\x00\x01\x02" + text + "\x01k\x00")...),
		"restored condition":         request([]byte("\x05\x00\x02\x01\x00\x00\x01\x09" + text + "\x01k\x01v\x00")...),
		"result without expiry":      request([]byte("\x05\x00\x02\x01\x00\x00\x00\x01\x01k\x00\x01\x01r")...),
		"unknown request flag":       request(4, 4),
		"empty request id":           request(4, 1, 0, 0, 0),
		"sequence without an origin": request(4, 1, 0, 1, 0),
		"done not below sequence":    request(4, 1, 1, 1, 1),
		"empty client id":            request(1, 2, 1, 'a', 0, 0),
		"client id of a tick":        request(4, 2, 1, 'a', 1, 'b'),
		"origin without a name":      request(2, 0, 0),
		"limit beyond 32 bits":       request(binary.AppendUvarint([]byte{3, 0}, math.MaxUint32+1)...),
		"number not shortest":        request(3, 0, 0x80, 0),
		"number too long":            request(append([]byte{3, 0}, bytes.Repeat([]byte{0xff}, 10)...)...),
		"append with a condition":    request([]byte("\x01\x00\x01\x08" + text + "\x01k\x00")...),
		"check without a condition":  request([]byte("\x01\x00\x01\x03" + text + "\x01k")...),
		"empty store":                request([]byte("\x01\x00\x01\x01\x00\x01k\x00")...),
		"first store left out":       request([]byte("\x01\x00\x01\x81\x01k\x00")...),
		"NUL in a store":             request([]byte("\x01\x00\x01\x01\x01\x00\x01k\x00")...),
		"empty key":                  request([]byte("\x01\x00\x01\x01" + text + "\x00\x00")...),
		"delete with a ttl":          request([]byte("\x01\x00\x01\x22" + text + "\x01k\x05")...),
		"empty ttl":                  request([]byte("\x01\x00\x01\x21" + text + "\x01k\x00\x00")...),
		"empty expiry":               request([]byte("\x01\x00\x01\x41" + text + "\x01k\x00\x00")...),
		"empty content type":         request([]byte("\x01\x00\x01\x11" + text + "\x01k\x00\x00")...),
		"store repeated":             request([]byte("\x01\x00\x02\x02" + text + "\x01k\x02" + text + "\x01l")...),
		"trailing byte in a request": request(4, 0, 0),
		"value beyond the request":   request([]byte("\x01\x00\x01\x01" + text + "\x01k\x7f")...),
		"more operations than bytes": request(1, 0, 0xff, 0xff, 0x03),
		"more requests than bytes":   command.AppendHeader(nil, command.First, 1, 1<<30),
		"request beyond the batch":   append(bytes.Clone(header), 0x7f, 4, 0),
	}
	for name, data := range cases {
		if b, err := command.DecodeUpTo(255, data); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v %v, want %s", name, b, err, fault.Corrupt)
		}
	}
}

func TestAppend_RefusesWhatCannotBeDecoded(t *testing.T) {
	op := command.Op{Kind: command.OpSet, Store: "s", Key: "k"}
	write := func(change func(*command.Op)) command.Request {
		o := op
		change(&o)
		return command.Request{Kind: command.KindWrite, Ops: []command.Op{op, o}}
	}
	del := func(change func(*command.Op)) command.Request {
		return write(func(o *command.Op) {
			o.Kind = command.OpDelete
			change(o)
		})
	}
	checked := func(o command.Op) command.Request {
		return command.Request{Kind: command.KindWrite, Ops: []command.Op{o}}
	}
	cases := map[string]command.Request{
		"no kind":               {},
		"kind 5":                {Kind: 5},
		"operations of a tick":  {Kind: command.KindTick, Ops: []command.Op{op}},
		"name of a write":       {Kind: command.KindWrite, Name: "n"},
		"origin without a name": {Kind: command.KindRegister},
		"limit of a tick":       {Kind: command.KindTick, Limit: 1},
		"client id of a tick":   {Kind: command.KindTick, Client: command.ClientID{ID: "a"}},
		"scope without an id":   {Kind: command.KindWrite, Client: command.ClientID{Scope: "a"}},
		"sequence, no origin":   {Kind: command.KindTick, ID: command.RequestID{Seq: 1}},
		"done at the sequence":  {Kind: command.KindTick, ID: command.RequestID{Origin: 1, Seq: 3, Done: 3}},
		"sequence zero":         {Kind: command.KindTick, ID: command.RequestID{Origin: 1}},
		"operation kind 0":      write(func(o *command.Op) { o.Kind = 0 }),
		"operation kind 5":      write(func(o *command.Op) { o.Kind = 5 }),
		"append with condition": write(func(o *command.Op) { o.Kind, o.Cond = command.OpAppend, command.CondAbsent }),
		"format 1":              {Kind: command.KindFormat, Limit: 1},
		"format 256":            {Kind: command.KindFormat, Limit: 256},
		"check, no condition":   checked(command.Op{Kind: command.OpCheck, Store: "s", Key: "k"}),
		"check with a value": checked(command.Op{Kind: command.OpCheck, Cond: command.CondAbsent, Store: "s", Key: "k",
			Value: []byte{1}}),
		"condition 4":           write(func(o *command.Op) { o.Cond = 4 }),
		"revision, no cond":     write(func(o *command.Op) { o.Revision = 1 }),
		"no store":              write(func(o *command.Op) { o.Store = "" }),
		"NUL in a store":        write(func(o *command.Op) { o.Store = "a\x00b" }),
		"empty key":             write(func(o *command.Op) { o.Key = "" }),
		"delete with a value":   del(func(o *command.Op) { o.Value = []byte{1} }),
		"delete with a type":    del(func(o *command.Op) { o.ContentType = "a" }),
		"delete with a ttl":     del(func(o *command.Op) { o.TTL = 1 }),
		"delete with an expiry": del(func(o *command.Op) { o.ExpireAt = 1 }),
	}
	for name, r := range cases {
		dst := []byte("kept")
		got, err := command.AppendRequest(dst, &r)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want %s", name, err, fault.Invalid)
		}
		if string(got) != "kept" {
			t.Errorf("%s: %q was written in spite of the error", name, got)
		}
		if _, err := command.EncodeRequest(&r, 1<<20); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: EncodeRequest gave %v, want %s", name, err, fault.Invalid)
		}
	}
}

func TestValidate_NamesLimitInError(t *testing.T) {
	limits := command.Limits{Key: 4, Value: 8, ContentType: 2}
	op := command.Op{Kind: command.OpSet, Store: "s", Key: "1234", Value: make([]byte, 8), ContentType: "ab"}
	if err := op.Validate(limits); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	if err := (&command.Op{Kind: command.OpSet, Store: "s"}).Validate(limits); !fault.Is(err, fault.Invalid) {
		t.Errorf("empty key: %v, want %s", err, fault.Invalid)
	}
	for name, change := range map[string]func(*command.Op){
		"key":          func(o *command.Op) { o.Key += "5" },
		"value":        func(o *command.Op) { o.Value = make([]byte, 9) },
		"content type": func(o *command.Op) { o.ContentType = "abc" },
	} {
		o := op
		change(&o)
		err := o.Validate(limits)
		if !fault.Is(err, fault.TooLarge) || !bytes.Contains([]byte(fault.Text(err)), []byte(name)) {
			t.Errorf("long %s: %v, want %s naming it", name, err, fault.TooLarge)
		}
		if err := o.Validate(command.Limits{}); err != nil {
			t.Errorf("long %s without limits: %v", name, err)
		}
	}
}

func TestAppend_WithSpareCapacityDoesNotAllocate(t *testing.T) {
	b := samples()["write_ids"]
	dst := make([]byte, 0, 1024)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := command.Append(dst, &b); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("Append allocates %v times", allocs)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range samples() {
		data, err := command.Append(nil, &b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := command.DecodeUpTo(255, data)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Unimplemented) {
				t.Fatalf("error without a known code: %v", err)
			}
			return
		}
		again, err := command.Append(nil, &b)
		if err != nil {
			t.Fatalf("decoded but refused by Append: %v", err)
		}
		if !bytes.Equal(again, data) {
			t.Fatalf("two forms of one batch:\n%x\n%x", data, again)
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(1), "scope", "id", "store", "key", []byte("v"), "type", uint64(3), uint64(4),
		uint64(5), uint8(1))
	f.Fuzz(func(t *testing.T, origin, seq, done uint64, scope, id, store, key string, value []byte,
		contentType string, ttl, at, revision uint64, cond uint8) {
		b := command.Batch{Stamp: at, Requests: []command.Request{
			{
				Kind: command.KindWrite, ID: command.RequestID{Origin: origin, Seq: seq, Done: done},
				Client: command.ClientID{Scope: scope, ID: id},
				Ops: []command.Op{
					{Kind: command.OpSet, Cond: command.Cond(cond), Revision: revision, Store: store, Key: key,
						Value: value, ContentType: contentType, TTL: ttl, ExpireAt: at},
					{Kind: command.OpDelete, Store: store, Key: key + "x"},
				},
			},
			{Kind: command.KindRegister, Name: key},
		}}
		data, err := command.Append(nil, &b)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		got, err := command.DecodeUpTo(255, data)
		if err != nil {
			t.Fatalf("Decode of what Append wrote: %v", err)
		}
		if d := cmp.Diff(b, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

func BenchmarkAppendRequest(b *testing.B) {
	r := samples()["write_ids"].Requests[0]
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := command.AppendRequest(dst, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	batch := command.Batch{Stamp: 1}
	for range 64 {
		batch.Requests = append(batch.Requests, samples()["write_ids"].Requests[0])
	}
	data, err := command.Append(nil, &batch)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := command.DecodeUpTo(255, data); err != nil {
			b.Fatal(err)
		}
	}
}
