package state_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func keyPrefix(t testing.TB, text string) state.KeyPrefix {
	t.Helper()
	p, err := state.ParseKeyPrefix(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKeyPrefix_Stored(t *testing.T) {
	with := state.Owner{App: "shop", Namespace: "prod", Store: "orders"}
	without := state.Owner{App: "shop", Store: "orders"}
	for _, c := range []struct {
		prefix string
		owner  state.Owner
		want   string
	}{
		{"", with, "shop||k"}, {"appid", with, "shop||k"}, {"APPID", without, "shop||k"},
		{"namespace", with, "prod.shop||k"}, {"Namespace", without, "shop||k"},
		{"name", with, "orders||k"}, {"none", with, "k"}, {"Team-A", with, "team-a||k"}, {"größe", without, "größe||k"},
	} {
		p := keyPrefix(t, c.prefix)
		if got := p.Stored(c.owner, "k"); got != c.want {
			t.Errorf("keyPrefix %q, owner %+v: key k is stored as %q, want %q", c.prefix, c.owner, got, c.want)
		}
		if got := keyPrefix(t, p.String()); got != p {
			t.Errorf("keyPrefix %q reads its own text %q as %v", c.prefix, p, got)
		}
	}
}

func TestKeyPrefix_OriginalOfOwnerOnly(t *testing.T) {
	for _, prefix := range []string{"appid", "namespace", "name", "none", "literal"} {
		shop := state.Instance{Name: "orders", Namespace: "prod", KeyPrefix: keyPrefix(t, prefix)}
		for _, key := range []string{"k", "a|b", "|k", "k|", "a/b", " ", "ü", strings.Repeat("x", state.MaxKeySize)} {
			if got, ok := shop.OriginalKey("shop", shop.StoredKey("shop", key)); !ok || got != key {
				t.Errorf("%s: key %q came back as %q, %v", prefix, key, got, ok)
			}
		}
		for _, foreign := range []string{"", "shop||", "shop||type||id||k", "prod.shop||", "orders||",
			"orders||type||id||k", "literal||", "literal||a||b"} {
			if got, ok := shop.OriginalKey("shop", foreign); ok {
				t.Errorf("%s: the stored key %q is taken for the key %q", prefix, foreign, got)
			}
		}
	}
	i := state.Instance{KeyPrefix: keyPrefix(t, "")}
	for _, foreign := range []string{"sho||k", "shop2||k", "other||k", "k", "shop|k"} {
		if got, ok := i.OriginalKey("shop", foreign); ok {
			t.Errorf("another's stored key %q is taken for the key %q", foreign, got)
		}
	}
	if got := i.StoredPrefix("shop", "or"); got != "shop||or" {
		t.Errorf("StoredPrefix = %q", got)
	}
}

func TestActorKey_IsNoOrdinaryKey(t *testing.T) {
	stored := state.ActorKey("shop", "cart", "17", "items")
	if stored != "shop||cart||17||items" {
		t.Errorf("ActorKey = %q", stored)
	}
	i := state.Instance{}
	if key, ok := i.OriginalKey("shop", stored); ok {
		t.Errorf("actor state shows up as the key %q", key)
	}
}

// An id that does not contain the separator keeps Dapr's layout. Every id can be read back from its stored form.
func TestStoredActorID_CanBeReadAndSeparated(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{"k", "|k", "k|"} {
		for _, id := range []string{"17", "a b;c%7C", "a|b", "|", "||", "|||", "a|", "|a", "a||b", "a|||b", "||a|b||",
			"a||k", "a||", "||k"} {
			stored := state.ActorKey("shop", "cart", id, key)
			parts := strings.SplitN(stored, state.Separator, 4)
			if len(parts) != 4 || parts[0] != "shop" || parts[1] != "cart" || state.ActorIDOf(parts[2]) != id ||
				parts[3] != key || state.StoredActorID(id) != parts[2] {
				t.Errorf("id %q with the key %q is stored as %q", id, key, stored)
			}
			if !strings.Contains(id, "||") && strings.Trim(id, "|") == id && parts[2] != id {
				t.Errorf("id %q is stored as %q", id, parts[2])
			}
			if other, taken := seen[stored]; taken {
				t.Errorf("%s and %s have the same stored key", other, id)
			}
			seen[stored] = id
		}
	}
}

func TestParseKeyPrefix_RefusesAmbiguousLiteral(t *testing.T) {
	for _, text := range []string{"a||b", "||", "a|", "|a", " a", "a ", "\t", "a\nb", "a\x00", "\xff",
		strings.Repeat("x", 257)} {
		if p, err := state.ParseKeyPrefix(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseKeyPrefix(%q) = %v, %v", text, p, err)
		}
	}
	keyPrefix(t, strings.Repeat("x", 256))
}

func TestValidateKey(t *testing.T) {
	for _, key := range []string{"k", "|", "a|b", "a/b", "..", " ", "\x00", "日本", strings.Repeat("x", 4096)} {
		if err := state.ValidateKey(key); err != nil {
			t.Errorf("ValidateKey(%q): %v", key, err)
		}
	}
	long := strings.Repeat("ü", 2049)
	for _, c := range []struct {
		key  string
		code fault.Code
		name string
	}{
		{"", fault.Invalid, ""}, {"a||b", fault.Invalid, "a||b"}, {"||", fault.Invalid, "||"}, {"|||", fault.Invalid,
			"|||"},
		{"\xff", fault.Invalid, "\xff"}, {long, fault.TooLarge, strings.Repeat("ü", 64) + "..."}, {"x" + long,
			fault.TooLarge, "x" + strings.Repeat("ü", 63) + "..."},
	} {
		err := state.ValidateKey(c.key)
		if !fault.Is(err, c.code) || fault.KeyOf(err) != c.name || len(err.Error()) > 400 {
			t.Errorf("ValidateKey of %d bytes: %v with code %q and key %q, want %q and %q", len(c.key), err,
				fault.CodeOf(err), fault.KeyOf(err), c.code, c.name)
		}
	}
}

func TestValidateAppID(t *testing.T) {
	for _, id := range []string{"a", "Order-Service_2", "0", strings.Repeat("x", 128)} {
		if err := state.ValidateAppID(id); err != nil {
			t.Errorf("ValidateAppID(%q): %v", id, err)
		}
	}
	for _, id := range []string{"", "a|b", "a.b", "a b", "a/b", "ü", "a\n", strings.Repeat("x", 129)} {
		if err := state.ValidateAppID(id); !fault.Is(err, fault.Invalid) {
			t.Errorf("ValidateAppID(%q): %v", id, err)
		}
	}
}

func TestValidateActor(t *testing.T) {
	for _, name := range []string{"cart", "a.b-c_d", "a b", "ü", "1", "...", ".a", "a;..", strings.Repeat("x", 1024)} {
		if err := state.ValidateActor(name, name); err != nil {
			t.Errorf("ValidateActor(%q): %v", name, err)
		}
	}
	refused := []string{"", "a/b", `a\b`, "a#b", "a?b", "a\x00", "a\u0085b", "\xff", ".", "..", ".;a", "..;",
		"..;a=b", strings.Repeat("x", 1025)}
	for _, name := range append(refused, "a|b", "a||b") {
		if err := state.ValidateActor(name, "id"); !fault.Is(err, fault.Invalid) ||
			!strings.Contains(err.Error(), "actor type") {
			t.Errorf("actor type %q: %v", name, err)
		}
	}
	for _, name := range refused {
		if err := state.ValidateActor("type", name); !fault.Is(err, fault.Invalid) ||
			!strings.Contains(err.Error(), "actor id") {
			t.Errorf("actor id %q: %v", name, err)
		}
	}
	for _, id := range []string{"a|b", "|", "||", "a||b|"} {
		if err := state.ValidateActor("type", id); err != nil {
			t.Errorf("actor id %q: %v", id, err)
		}
	}
}
