// The stand-in for Google Cloud Storage of the tests: fake-gcs-server, everything in memory, behind a door.
//
//	gcs PORT ACCOUNTS
//
// ACCOUNTS are the service accounts it knows, each with what it may do: "loader@shop=write,reader@shop=read". Their key
// files name http://127.0.0.1:PORT/token as the place that gives out access tokens; who has signed a request for one is
// not looked at, only for which account it is. Whoever comes without a token, or with one from elsewhere, gets a 401,
// and who may only read a 403 for anything else.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	port := os.Args[1]
	rights := map[string]string{}
	for _, account := range strings.Split(os.Args[2], ",") {
		name, may, _ := strings.Cut(account, "=")
		rights[name] = may
	}
	address := "127.0.0.1:" + port
	store, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		Scheme:      "http",
		PublicHost:  address,
		ExternalURL: "http://" + address,
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := store.HTTPHandler()
	log.Fatal(http.ListenAndServe(address, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/token" {
			giveToken(answer, request, rights)
			return
		}
		account := strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer token-of-")
		may, known := rights[account]
		switch {
		case !known:
			refuse(answer, http.StatusUnauthorized, "Invalid Credentials")
		case may == "read" && request.Method != http.MethodGet && request.Method != http.MethodHead:
			refuse(answer, http.StatusForbidden, account+" does not have storage.objects.create access")
		default:
			// Go drops a part of a query that has a semicolon in it; at Google it is a character like any other.
			request.URL.RawQuery = strings.ReplaceAll(request.URL.RawQuery, ";", "%3B")
			handler.ServeHTTP(answer, request)
		}
	})))
}

// giveToken answers a request signed by a service account with an access token.
func giveToken(answer http.ResponseWriter, request *http.Request, rights map[string]string) {
	answer.Header().Set("Content-Type", "application/json")
	var claims struct {
		Issuer string `json:"iss"`
	}
	parts := strings.Split(request.FormValue("assertion"), ".")
	if len(parts) == 3 {
		if payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "=")); err == nil {
			_ = json.Unmarshal(payload, &claims)
		}
	}
	if _, known := rights[claims.Issuer]; !known {
		answer.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(answer, `{"error":"invalid_grant","error_description":"Invalid grant: account not found"}`)
		return
	}
	_ = json.NewEncoder(answer).Encode(map[string]any{
		"access_token": "token-of-" + claims.Issuer, "token_type": "Bearer", "expires_in": 3600,
	})
}

// refuse says no as Google does.
func refuse(answer http.ResponseWriter, code int, message string) {
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(code)
	_ = json.NewEncoder(answer).Encode(map[string]any{"error": map[string]any{"code": code, "message": message}})
}
