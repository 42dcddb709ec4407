package trust_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
)

// golden is a token whose derived keys are known. Nodes of all versions must derive the same keys from it.
const golden = "quorate_cluster1_aaaqeayeaudaocajbifqydiob4ibceqtu55el56j"

func parse(t testing.TB, text string) trust.Token {
	t.Helper()
	token, err := trust.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestToken_RoundTripAndUnique(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token := trust.NewToken()
		text := token.Reveal()
		if got := parse(t, text); got != token || seen[text] {
			t.Fatalf("%s was parsed as another token, or was generated twice", text)
		}
		seen[text] = true
	}
}

func TestToken_DerivedKeysNeverChange(t *testing.T) {
	token := parse(t, golden)
	if token.Reveal() != golden {
		t.Errorf("it is written as %s", token.Reveal())
	}
	for what, got := range map[string][2]string{
		"fingerprint": {token.Fingerprint(), "f88f54a2"},
		"gossip key": {hex.EncodeToString(token.GossipKey()),
			"140043ef24c266ada0eab2ac3a6de16f6ba972f318474a60d9c46bea8f2593a8"},
		"public key of the CA": {trust.AuthorityKey(token),
			"0ddacd13a3f6de9e44bfa99e33dd4937584ab58647e53e813de4a4ec65676914"},
		"certificate of the CA": {trust.AuthorityHash(token),
			"f3f2c9e73f9f2d4f36ad09e13dd01bf324ba2975870f569bcd23fc3902f8b8d5"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %s, was %s", what, got[0], got[1])
		}
	}
}

func TestParseToken_RefusesWithReason(t *testing.T) {
	body := strings.TrimPrefix(golden, "quorate_cluster1_")
	for text, want := range map[string]string{
		"":                               "does not begin with quorate_cluster1_",
		"correct horse battery staple":   "too easily guessed",
		body:                             "does not begin with",
		"quorate_cluster2_" + body:       "its form, number 2, is not known",
		"quorate_cluster1_" + body[:39]:  "39 characters after quorate_cluster1_, a token has 40",
		golden + "a":                     "41 characters",
		"quorate_cluster1_1" + body[1:]:  "a character that no token has",
		"quorate_cluster1_b" + body[1:]:  "its checksum does not fit",
		strings.ToUpper(golden):          "does not begin with",
		golden[:len(golden)-1] + "\n":    "a character that no token has",
		"quorate_cluster1_" + body[:20]:  "something is missing",
		"quorate_cluster99999_" + body:   "does not begin with",
		"quorate_cluster1_\x00" + body:   "41 characters",
		"quorate_cluster1_ä" + body[2:]:  "a character that no token has",
		"quorate_cluster_" + body:        "does not begin with",
		"  " + golden:                    "does not begin with",
		"quorate_cluster1_" + body + " ": "41 characters",
	} {
		_, err := trust.ParseToken(text)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "quorate token create") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if len(text) > 20 && strings.Contains(err.Error(), text[18:]) {
			t.Errorf("the error quotes the token: %v", err)
		}
	}
}

func TestParseTokens_OneOrTwo(t *testing.T) {
	a, b, c := trust.NewToken(), trust.NewToken(), trust.NewToken()
	for _, ok := range []struct {
		text string
		want []trust.Token
	}{
		{a.Reveal(), []trust.Token{a}},
		{"# of the shop\n\n  " + a.Reveal() + "  \r\n", []trust.Token{a}},
		{a.Reveal() + "\n# next\n" + b.Reveal() + "\n", []trust.Token{a, b}},
	} {
		got, err := trust.ParseTokens([]byte(ok.text))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(ok.want) || got[0] != ok.want[0] {
			t.Errorf("%v %v, want %v", got, err, ok.want)
		}
	}
	for text, want := range map[string]string{
		"":         "no token in it",
		"# none\n": "no token in it",
		a.Reveal() + "\n" + b.Reveal() + "\n" + c.Reveal(): "there are 3 tokens",
		a.Reveal() + "\n" + a.Reveal():                     "twice",
		a.Reveal() + "\nsecret-of-mine":                    "line 2: this is no cluster token",
	} {
		_, err := trust.ParseTokens([]byte(text))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "secret-of-mine") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestToken_IsNeverPrinted(t *testing.T) {
	token := parse(t, golden)
	secret := golden[20:40]
	text, err := json.Marshal(map[string]any{"t": token})
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s", token, token, token, token),
		string(text), token.LogValue().String(),
		fmt.Sprintf("%+v", trust.Material{Tokens: []trust.Token{token}})} {
		if strings.Contains(got, secret) || strings.Contains(got, "[0 1 2") || strings.Contains(got, "0x0, 0x1") {
			t.Errorf("the token is printed: %s", got)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(golden)
	f.Add("quorate_cluster1_")
	f.Add("quorate_cluster2_x")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := trust.ParseToken(text)
		if err == nil && token.Reveal() != text {
			t.Errorf("%q is read as %q", text, token.Reveal())
		}
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte(golden + "\n# x\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if tokens, err := trust.ParseTokens(file); err == nil && (len(tokens) < 1 || len(tokens) > 2) {
			t.Errorf("%d tokens", len(tokens))
		}
	})
}

func FuzzParseApp(f *testing.F) {
	f.Add("spiffe://public/ns/default/orders")
	f.Add("spiffe://public/ns/a%2fb/orders?x#y")
	f.Fuzz(func(t *testing.T, text string) {
		if a, ok := trust.ParseApp(text); ok && a.TrustDomain == "" {
			t.Errorf("%q has no trust domain", text)
		} else if again, same := trust.ParseApp(a.String()); ok && (!same || again != a) {
			t.Errorf("%q: %+v is written as %s", text, a, a)
		}
	})
}
